"""The fills of a recheck as CSV, bounded and safe to open in a spreadsheet. Pure."""

from collections import deque
from typing import Final

from switchyard.domain.chain import stamp
from switchyard.domain.money import plain
from switchyard.domain.pdca.metrics.inputs import Fill

_HEADER: Final = (
    "at",
    "account_id",
    "order_id",
    "exec_id",
    "venue",
    "symbol",
    "side",
    "qty",
    "price",
    "multiplier",
    "currency",
    "fee",
    "fee_currency",
)
# A spreadsheet takes a text that begins with one of these for a formula; the wide forms are those of Japanese input.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class FillsTable:
    """The newest fills that fit into a number of bytes, the oldest of them first."""

    def __init__(self, bytes_max: int) -> None:
        self._header = _line(_HEADER)
        self._room = bytes_max - len(self._header)
        self._lines: deque[bytes] = deque()
        self.dropped = 0
        """Older fills that did not fit."""

    def add(self, fill: Fill) -> None:
        """Add a fill; where there is no room, the oldest ones make it."""
        line = _line(_values(fill))
        self._lines.append(line)
        self._room -= len(line)
        while self._room < 0:
            self._room += len(self._lines.popleft())
            self.dropped += 1

    @property
    def listed(self) -> int:
        """How many fills it has."""
        return len(self._lines)

    def content(self) -> bytes:
        """The table as UTF-8."""
        return b"".join((self._header, *self._lines))


def safe_text(text: str) -> str:
    """The text, with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _values(fill: Fill) -> tuple[str, ...]:
    # Numbers are our own text: a minus sign before digits is no formula.
    return (
        stamp(fill.at),
        safe_text(fill.account_id),
        safe_text(fill.order_id),
        safe_text(fill.exec_id),
        safe_text(fill.venue),
        safe_text(fill.symbol),
        fill.side,
        plain(fill.qty),
        plain(fill.price),
        plain(fill.multiplier),
        safe_text(fill.currency),
        plain(fill.fee),
        safe_text(fill.fee_currency or ""),
    )


def _line(values: tuple[str, ...]) -> bytes:
    # A lone surrogate from a venue's text must not stop the table.
    return (",".join(map(_quoted, values)) + "\r\n").encode("utf-8", "replace")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
