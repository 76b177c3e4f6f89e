"""Conventions of command-line programs: `--version`, shell completion and NO_COLOR."""

import asyncio
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from switchyard import __version__
from tests.support.gateway import RunningGateway
from tests.support.process import COMMAND, clean_environment, run_command

# The control sequences that select a colour; bold and dim are allowed without colours.
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")


def test_the_version_is_that_of_the_installed_package() -> None:
    printed = run_command("--version")
    assert (printed.returncode, printed.stdout, printed.stderr) == (0, f"switchyard {__version__}\n", "")
    assert version("event-switchyard") == __version__


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("or", {"order", "orders"}),
        ("outbox re", {"resolve"}),
        ("order b", {"buy"}),
        ("order buy USDJPY 1 --ti", {"--tif", "--timeout"}),
    ],
)
def test_the_completion_script_completes_commands_arguments_and_options(typed: str, offered: set[str]) -> None:
    script = f"""
        eval "$(_SWITCHYARD_COMPLETE=source_bash {COMMAND})"
        COMP_WORDS=(switchyard {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _switchyard_completion {COMMAND} && printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    completed = subprocess.run(
        ["bash", "-c", script], env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert (set(completed.stdout.split()), completed.stderr) == (offered, "")


def test_the_help_offers_to_install_the_completion() -> None:
    assert "--install-completion" in run_command("--help").stdout


@pytest.mark.parametrize("arguments", [["--help"], ["orders"]])
async def test_no_color_removes_colours(embedded: RunningGateway, arguments: list[str]) -> None:
    order = (await embedded.place()).json
    await embedded.until_status(order["orderId"], "FILLED")
    settings = {
        "SWITCHYARD_TOKEN": embedded.token(),
        "SWITCHYARD_PORT": embedded.url.rpartition(":")[2],
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    coloured, plain = await asyncio.to_thread(run_both, arguments, settings)
    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)


def run_both(arguments: list[str], settings: dict[str, str]) -> tuple[str, str]:
    coloured = run_command(*arguments, **settings)
    plain = run_command(*arguments, **settings, NO_COLOR="1")
    assert (coloured.returncode, plain.returncode) == (0, 0), coloured.stderr + plain.stderr
    return coloured.stdout, plain.stdout


def test_a_start_imports_no_library_that_its_settings_do_not_ask_for() -> None:
    modules = "switchyard.entrypoints.cli.main, switchyard.bootstrap, switchyard.entrypoints.http.app"
    program = f"import sys, {modules}; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "redis",
            "confluent_kafka",
            "yaml",
            "markdown_it",
            "switchyard.adapters.airflow",
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []
