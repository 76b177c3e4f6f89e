"""Secrets of venues in files, read again while the process runs, so that keys rotate without a restart.

A file is looked at once a second, and changed values count once two looks have found the same, in case they are being
written. A file that cannot be read, or lacks a value that it had, changes nothing and raises an alarm.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from switchyard.domain.errors import SettingError
from switchyard.settings.parse import read_secret

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0


class SecretFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with secrets of a venue."""

    setting: str
    """Without `_FILE`."""
    path: Path
    parse: Callable[[str], Mapping[str, str]]
    """The secrets in the file's text, by name; raises SettingError, whose message has none of them."""


class SecretFiles:
    """The files of one venue's credential."""

    def __init__(
        self,
        files: Sequence[SecretFile],
        present: Mapping[str, str],
        *,
        replace: Callable[[Mapping[str, str]], None],
        note_unreadable: Callable[[bool], None],
    ) -> None:
        """`present`: those that were read at the start, and those that come from no file; `replace` gets all."""
        self._files = files
        self._present = dict(present)
        self._found: dict[str, str] = {}
        """What the last look has found, if it differs."""
        self._replace = replace
        self._note_unreadable = note_unreadable
        self._problem: str | None = None
        note_unreadable(False)

    async def run(self) -> None:
        """Look for as long as the process lives."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.run_once()

    async def run_once(self) -> int:
        """Look at the files; returns how many secrets have changed."""
        try:
            # In a thread: a file system over a network may take long.
            read = await asyncio.to_thread(self._read)
        except SettingError as error:
            self._note(str(error))
            return 0
        self._note(None)
        found = {**self._present, **read}
        changed = sum(self._present[name] != value for name, value in found.items())
        if not changed or found != self._found:
            self._found = found
            return 0
        self._present = found
        self._replace(found)
        return changed

    def _read(self) -> dict[str, str]:
        secrets: dict[str, str] = {}
        for file in self._files:
            read = file.parse(read_secret(file.setting, file.path))
            for name, value in read.items():
                if self._present.get(name) and not value:
                    raise SettingError(
                        file.setting + "_FILE", f"{name} is gone from {file.path}: its old value is used"
                    )
            secrets |= read
        return secrets

    def _note(self, problem: str | None) -> None:
        self._note_unreadable(problem is not None)
        if problem is not None and problem != self._problem:
            log.error("venue_secrets_unreadable", error=problem)
        self._problem = problem
