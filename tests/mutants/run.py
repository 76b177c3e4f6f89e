"""Runs tests against a copy of the sources, as they are or with a mutant's edit, in a process of their own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.mutants.catalog import ROOT, Mutant

# Above the slowest test that a mutant names, and what pytest itself adds at the end of a run.
TEST_SECONDS_MAX = 180
RUN_SECONDS_MAX = 900
# For the fixtures of an interrupted run, which end its servers.
GRACE_SECONDS = 60
_COPIED = ("src", "tests")

PASSED, FAILED = 0, 1


class Ran(NamedTuple):
    """What became of a run of pytest."""

    failed: frozenset[str]
    """The ids of the tests that failed; an error outside of a test is no failure."""
    problem: str | None
    """Why the run proves nothing, if it was not a run in which all tests passed or some failed."""


class Copy:
    """A folder with the sources and tests of this checkout; everything else in it is linked."""

    def __init__(self, folder: Path, origin: Path = ROOT) -> None:
        self.folder = folder
        folder.mkdir()
        for entry in origin.iterdir():
            if entry.name in _COPIED:
                # Hard links of one another: files are replaced, never written to.
                shutil.copytree(entry, folder / entry.name, copy_function=os.link if origin != ROOT else shutil.copy2)
            elif not entry.name.startswith("."):
                (folder / entry.name).symlink_to(entry.resolve())

    def edit(self, mutant: Mutant) -> None:
        """Apply the mutant's edits; raises DoesNotApply."""
        for path, text in mutant.sources(self.folder).items():
            path.unlink()
            path.write_text(text)
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()

    def test(self, tests: list[str]) -> Ran:
        """Run these tests, in this process's environment but with the sources of this folder."""
        with tempfile.TemporaryDirectory(prefix="t", dir=self.folder.parent, ignore_cleanup_errors=True) as scratch:
            results = Path(scratch) / "results.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS_MAX}"]
            # Native: where pytest renders the source of a failed test, Python 3.11 may fail itself ("AST constructor").
            command += [
                "--tb=native",
                f"--basetemp={scratch}/t",
                f"--junitxml={results}",
                *(f"tests/{test}" for test in tests),
            ]
            exit_code, output = self._run(command)
            failed, errors = _read(results)
        if exit_code is None:
            return Ran(failed, f"no end within {RUN_SECONDS_MAX} s")
        if exit_code == PASSED or (exit_code == FAILED and failed):
            return Ran(failed, None)
        return Ran(failed, f"pytest exited with {exit_code}: {'; '.join(errors) or _last_line(output)}")

    def _run(self, command: list[str]) -> tuple[int | None, str]:
        """The exit code, None if the run had to be ended, and what it wrote."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPATH"] = os.pathsep.join((str(self.folder / "src"), str(self.folder)))
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=RUN_SECONDS_MAX)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            return None, output


def names(test: str, failed: frozenset[str]) -> bool:
    """Whether this test, or a case of it, is among the failed ones."""
    return any(one == test or one.startswith(f"{test}[") for one in failed)


def _read(results: Path) -> tuple[frozenset[str], list[str]]:
    """The ids of the tests that failed, and the errors outside of tests; both empty if the run left no results."""
    if not results.exists():
        return frozenset(), []
    failed, errors = set(), []
    for case in ElementTree.parse(results).iter("testcase"):
        path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        name = f"{path}.py::{case.get('name')}"
        if case.find("failure") is not None:
            failed.add(name)
        if (error := case.find("error")) is not None:
            errors.append(f"{name}: {error.get('message')}")
    return frozenset(failed), errors


def _last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "no output")
