"""Records of a command line: a text file of commands (`$ …`) with the output and exit code that each must have.

`UPDATE_RECORDS=1 pytest tests/api/test_first_hour.py` writes the actual output into the files; look at the difference
before you commit it.
"""

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryFile

from tests.support.forked import start
from tests.support.polling import DEADLINE_SECONDS
from tests.support.ports import free_port
from tests.support.process import COMMAND, ROOT, clean_environment

FOLDER = ROOT / "tests" / "records"
# What differs from run to run, and what the record shows instead.
_VARIABLE = (
    (re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+"), "<token>"),
    (re.compile(r"\bord_[0-9A-HJKMNP-TV-Z]{26}\b"), "ord_<id>"),
    (re.compile(r"^[0-9A-HJKMNP-TV-Z]{8}(?=  \d\d-\d\d \d\d:\d\d  )", re.MULTILINE), "<end id>"),
    (re.compile(r"\bsim-[0-9A-Z]{10}-\d+"), "sim-<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?( UTC|Z)?"), "<time>"),
    (re.compile(r"\b\d\d-\d\d \d\d:\d\d(:\d\d\.\d+)?"), "<time>"),
    (re.compile(r"(?<=@ )1\d\d(\.\d+)?"), "<price>"),
    (re.compile(r"(?<=[\"_]price\":)1\d\d(\.\d+)?"), "<price>"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)

_WITHOUT_SHELL = re.compile(r"(?P<settings>(?:\w+=[\w./:-]+ )*)\.venv/bin/switchyard(?P<arguments>[\w./:@= -]*)")


class Session:
    """A user's shell: a folder with `.venv/bin/switchyard`.

    8081 stands for the gateway's port, 8082 for the back office's.
    """

    def __init__(self, folder: Path, port: int, **settings: str) -> None:
        self._folder = folder
        self._port = port
        self._books_port = free_port()
        (folder / ".venv").symlink_to(COMMAND.parents[1])
        self.environment = clean_environment(
            SWITCHYARD_PORT=str(port),
            SWITCHYARD_BACKOFFICE="true",
            SWITCHYARD_BACKOFFICE_PORT=str(self._books_port),
            HOME=str(folder),
            COLUMNS="80",
            NO_COLOR="1",
            TERM="dumb",
            **settings,
        )
        self.environment.pop("XDG_STATE_HOME", None)

    def check(self, name: str, *, forks: bool = False) -> None:
        """Run the commands of a record and compare their output with it; `forks`: those without a shell if possible."""
        commands = commands_of((FOLDER / f"{name}.txt").read_text("utf-8"))
        check_text(name, "\n".join(self._run(command, forks=forks) for command in commands))

    def plain(self, text: str) -> str:
        """The text as a record shows it."""
        text = text.replace(str(self._folder), "/home/me")
        text = text.replace(str(self._port), "8081").replace(str(self._books_port), "8082")
        for pattern, shown in _VARIABLE:
            text = pattern.sub(shown, text)
        return text

    def output(self, command: str) -> str:
        """The output of a command that must succeed, as it is."""
        done = self._bash(command)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _run(self, command: str, *, forks: bool) -> str:
        done = (self._fork(command) if forks else None) or self._bash(command)
        output = self.plain(done.stdout)
        end = "\n" if output and not output.endswith("\n") else ""
        code = f"[exit code {done.returncode}]\n" if done.returncode else ""
        return f"$ {command}\n{output}{end}{code}"

    def _fork(self, command: str) -> subprocess.CompletedProcess[str] | None:
        """What ended, or None for a command that needs a shell."""
        words = _WITHOUT_SHELL.fullmatch(command.replace("8081", str(self._port)))
        if words is None:
            return None
        environment = self.environment | dict(setting.split("=") for setting in words["settings"].split())
        with TemporaryFile() as out:
            process = start([str(COMMAND), *words["arguments"].split()], environment, self._folder, out)
            code = process.wait(DEADLINE_SECONDS)
            out.seek(0)
            return subprocess.CompletedProcess(command, code, out.read().decode())

    def _bash(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command.replace("8081", str(self._port))],
            cwd=self._folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )


def check_text(name: str, actual: str) -> None:
    """Compare the text with a record, or write it there."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_RECORDS"):
        path.write_text(actual, "utf-8")
    else:
        assert actual == path.read_text("utf-8")


def commands_of(text: str) -> list[str]:
    """The commands in a record or in the `console` blocks of a document, with their continuation lines."""
    return [found[1] for found in re.finditer(r"^\$ ((?:.*\\\n)*.*)", text, re.MULTILINE)]
