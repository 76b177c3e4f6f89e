"""Revoked tokens: a file with the `jti` of each, read again within a second of a change.

A token without a `jti` cannot be named, so it stays valid until it expires. Reads one file, whose state it compares at
most once a second; writes a log line and a gauge.
"""

import re
from collections.abc import Callable
from pathlib import Path

import structlog

from switchyard.domain.errors import SettingError, Unauthorized
from switchyard.ports.clock import Clock

log = structlog.get_logger()

CHECK_SECONDS = 1.0
# Ten thousand ids of identity providers, with comments. The file is read within a request, so it stays small.
FILE_BYTES_MAX = 1024 * 1024
TOKENS_MAX = 10_000
# Visible ASCII characters, without the sign that begins a comment.
JTI = re.compile(r"[!\"$-~]{1,256}")

Signature = tuple[int, int, int, int]


class ListUnusable(Exception):
    """The file is missing, too long or has a line that is no token id."""


class RevokedTokens:
    """The ids of the newest list that could be read."""

    def __init__(
        self, path: Path, *, clock: Clock, must_exist: bool = False, on_state: Callable[[bool], None] = lambda _: None
    ) -> None:
        """Read the list; raises SettingError if it cannot be used. `on_state`: is told whether the newest one can."""
        self._path = path
        self._clock = clock
        self._on_state = on_state
        self._ids: frozenset[str] = frozenset()
        self._has_read = must_exist
        self._seen: Signature | None = None
        self._problem: str | None = None
        self._checked_at = clock.monotonic()
        self._look()
        if self._problem is not None:
            raise SettingError("SWITCHYARD_REVOKED_TOKENS", f"{path}: {self._problem}")

    def check(self, jti: object) -> None:
        """Raise Unauthorized if the token of this id is revoked."""
        if self.includes(jti):
            raise Unauthorized("TOKEN_REVOKED", "the token has been revoked")

    def includes(self, jti: object) -> bool:
        """Whether a token of this id is revoked; None is the id of a token without one."""
        now = self._clock.monotonic()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._look()
        return jti in self._ids

    def _look(self) -> None:
        """Read the file if it has changed; a bad or missing one leaves the list as it is."""
        try:
            signature = _signature(self._path)
            if signature == self._seen:
                return
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            if _signature(self._path) != signature:
                return  # it is being written: the next look reads it
            self._seen = signature
            ids = parse_list(content)
        except FileNotFoundError as error:
            # A list that existed must not vanish unnoticed: its tokens would be valid again.
            self._seen = None
            self._note(str(error) if self._has_read else None)
        except (ListUnusable, OSError) as error:
            self._note(str(error))
        else:
            if ids != self._ids:
                log.info("revoked_tokens_read", tokens=len(ids))
            self._ids, self._has_read = ids, True
            self._note(None)

    def _note(self, problem: str | None) -> None:
        if problem is not None and self._problem is None:
            log.error("revoked_tokens_unreadable", path=str(self._path), error=problem, kept=len(self._ids))
        self._problem = problem
        self._on_state(problem is None)


def parse_list(content: bytes) -> frozenset[str]:
    """Return the ids of a list: one on each line, `#` begins a comment. Raises ListUnusable."""
    if len(content) > FILE_BYTES_MAX:
        raise ListUnusable(f"the list of revoked tokens is longer than {FILE_BYTES_MAX} bytes")
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise ListUnusable(f"the list of revoked tokens is not ASCII at byte {error.start}") from None
    found: set[str] = set()
    for number, line in enumerate(lines, 1):
        jti = line.partition("#")[0].strip()
        if jti and JTI.fullmatch(jti) is None:
            raise ListUnusable(f"the list of revoked tokens has no token id on line {number}: one jti on each line")
        found.add(jti)
    found.discard("")
    if len(found) > TOKENS_MAX:
        raise ListUnusable(f"the list of revoked tokens has more than {TOKENS_MAX}: remove those that have expired")
    return frozenset(found)


def _signature(path: Path) -> Signature:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
