"""An operator who knows nothing but the pages of `docs/operate/`: reads their commands and runs them as they are."""

import asyncio
import json
import re
import subprocess
from collections.abc import Mapping, Sequence

from tests.support.operations import PAGES
from tests.support.process import COMMAND, Process, clean_environment

# What a page leaves to the reader; an environment variable of the shell is none.
PLACEHOLDER = re.compile(r"(?<![$\w])[A-Z][A-Z_]*[A-Z]\b")


def commands_of(page: str, heading: str) -> list[str]:
    """The `switchyard` commands in the fenced blocks of a section, without their comments."""
    text = (PAGES / page).read_text("utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#{{1,3}} |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no section {heading!r}"
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", found[2], flags=re.DOTALL | re.MULTILINE)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("switchyard ")]


def block_after(page: str, words: str) -> str:
    """The first shell block of a page after these words, as it is."""
    text = (PAGES / page).read_text("utf-8")
    found = re.search(r"```sh\n(.*?)```", text[text.index(words) :], flags=re.DOTALL)
    assert found is not None, words
    return found[1]


class Operator:
    """Runs commands with the settings of a process, on its machine."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def run(self, command: str, values: Mapping[str, str] | None = None, codes: Sequence[int] = (0,)) -> str:
        """The output of a command of a page, with its placeholders filled; the exit code must be one of these."""
        filled = PLACEHOLDER.sub(lambda found: (values or {})[found[0]], command)

        def run() -> subprocess.CompletedProcess[str]:
            environment = clean_environment(**self._process.settings)
            environment["PATH"] = f"{COMMAND.parent}:{environment['PATH']}"
            return subprocess.run(
                ["bash", "-euo", "pipefail", "-c", filled],
                env=environment,
                cwd=self._process.folder,
                capture_output=True,
                text=True,
                check=False,
            )

        done = await asyncio.to_thread(run)
        assert done.returncode in codes, f"{filled}\n{done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    async def problems(self) -> dict[str, str]:
        """The checks of `doctor` that are not ok; the machine of the tests may have a full disk."""
        found = json.loads(await self.run("switchyard doctor --json", codes=(0, 1)))
        return {
            check["check"]: check["detail"]
            for check in found["checks"]
            if check["status"] != "ok" and check["check"] != "disk"
        }


def first_column(table: str) -> list[str]:
    """The first word of each row of a printed table."""
    return [line.split()[0] for line in table.splitlines()[1:] if line and not line.startswith(" ")]
