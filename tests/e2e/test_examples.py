"""Every script in `examples/` runs against a started Switchyard and prints what it says."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.polling import DEADLINE_SECONDS
from tests.support.process import ROOT, Process, clean_environment

FOLDER = ROOT / "examples"
ORDER = "ord_[0-9A-Z]{26}"
# The script and the output that it must have.
EXPECTED = {
    "place_order.py": rf"placed {ORDER}\n(.*\n)*FILLED 1000 of 1000 at [0-9.]+\n",
    "stored_key.py": rf"placed {ORDER}\n",
    "wait_for_result.py": r"filled 0\.1 lots at [0-9.]+\nrejected: VALIDATION_ERROR: .*max_spread.*\n",
    "follow_account.py": r"([A-Z]{6} FILLED [0-9.]+\n){3}",
    "resting_order.py": rf"canceling {ORDER}\n[0-9]+ OrderAccepted\n([0-9]+ [A-Za-z]+\n)+",
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("examples"))
    asyncio.run(process.start())
    yield process
    process.close()


def run(script: str, process: Process, *arguments: str) -> str:
    token = process.headers()["Authorization"].removeprefix("Bearer ")
    environment = clean_environment(SWITCHYARD_TOKEN=token, SWITCHYARD_PORT=str(process.port))
    finished = subprocess.run(
        [sys.executable, FOLDER / script, *arguments],
        env=environment,
        cwd=process.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


@pytest.mark.parametrize("script", EXPECTED)
def test_an_example_runs(script: str, process: Process) -> None:
    printed = run(script, process)
    assert re.fullmatch(EXPECTED[script], printed), printed


def test_a_second_run_with_a_stored_key_finds_the_first_order(process: Process) -> None:
    first = run("stored_key.py", process, "k")
    assert run("stored_key.py", process, "k") == first.replace("placed", "found")


def test_every_example_is_run_and_listed() -> None:
    scripts = {path.name for path in FOLDER.glob("*.py")}
    listed = set(re.findall(r"\[(\w+\.py)\]", (FOLDER / "README.md").read_text()))
    assert scripts == set(EXPECTED) == listed
