"""Replays recorded quotes: the first is current at the start, the others follow at their recorded distances.

The file is read once, whole and checked; a line that cannot be used is an error, because a gap would not be noticed.
CSV has a header with the columns `at`, `symbol`, `bid` and `ask`; JSON Lines has an object with these members per line.
"""

import csv
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from switchyard.domain.errors import InvalidField, SwitchyardError
from switchyard.domain.journal.facts import Quote
from switchyard.domain.values import SYMBOL, canonical, positive_amount
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import TimedQuote

# About 100 MB of memory.
RECORDS_MAX: Final = 250_000
BYTES_MAX: Final = 64 * 1024 * 1024
# Times that lie further apart are probably wrong.
SPAN_MAX: Final = timedelta(days=366)
COLUMNS: Final = ("at", "symbol", "bid", "ask")
EXAMPLE: Final = "2026-01-05T09:00:00Z,USDJPY,150.01,150.02"


class UnreadableRecord(SwitchyardError):
    """The file cannot be replayed; the message names the line and the field."""


class _Recorded(NamedTuple):
    """One line of the file."""

    at: datetime
    symbol: str
    bid: Decimal
    ask: Decimal
    bid_size: Decimal | None = None
    ask_size: Decimal | None = None


class _Track(NamedTuple):
    """The quotes of one symbol, in the order of their distances in seconds from the first quote of the file."""

    distances: list[float]
    quotes: list[Quote]


class RecordedQuotes:
    """ports.quotes.QuoteSource from a file; `start` is when its first quote is current, by default now."""

    def __init__(self, path: Path, *, clock: Clock, start: datetime | None = None) -> None:
        """Read the file; raises UnreadableRecord."""
        records = sorted(_records(path), key=lambda record: record.at)
        if not records:
            raise UnreadableRecord(f"{path} has no quotes; a line looks like {EXAMPLE}")
        if records[-1].at - records[0].at > SPAN_MAX:
            raise UnreadableRecord(f"{path} spans more than {SPAN_MAX.days} days: {records[0].at} to {records[-1].at}")
        self._clock = clock
        now = clock.now()
        begin = now if start is None else start
        # On the monotonic clock, so that a step of the wall clock does not move the replay.
        self._begin = clock.monotonic() - (now - begin).total_seconds()
        self._tracks: dict[str, _Track] = {}
        first = records[0].at
        for record in records:
            distance = record.at - first
            track = self._tracks.setdefault(record.symbol, _Track([], []))
            track.distances.append(distance.total_seconds())
            track.quotes.append(
                Quote(
                    bid=record.bid,
                    ask=record.ask,
                    at=begin + distance,
                    bid_size=record.bid_size,
                    ask_size=record.ask_size,
                )
            )

    def current(self, symbol: str) -> TimedQuote | None:
        """Return the last quote of the symbol whose time has come; none before its first."""
        track = self._tracks.get(symbol)
        if track is None:
            return None
        position = bisect_right(track.distances, self._clock.monotonic() - self._begin) - 1
        if position < 0:
            return None
        return TimedQuote(track.quotes[position], self._begin + track.distances[position])

    async def ask(self, symbol: str) -> TimedQuote | None:
        """Return the same."""
        return self.current(symbol)


def _records(path: Path) -> Iterator[_Recorded]:
    try:
        if path.stat().st_size > BYTES_MAX:
            raise UnreadableRecord(f"{path} is larger than {BYTES_MAX} bytes: split it")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from None
    rows = _csv_rows(path, text) if path.suffix == ".csv" else _json_rows(path, text)
    for count, (line, row) in enumerate(rows):
        if count >= RECORDS_MAX:
            raise UnreadableRecord(f"{path} has more than {RECORDS_MAX} quotes: split it")
        try:
            yield _recorded(row)
        except InvalidField as error:
            raise UnreadableRecord(f"{path}, line {line}: {error.message}") from None


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    reader = csv.DictReader(text.splitlines(), strict=True)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise UnreadableRecord(f"{path}, line 1: the column {missing[0]!r} is missing; needed are {','.join(COLUMNS)}")
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UnreadableRecord(f"{path}, after line {reader.line_num}: {error}") from None


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    decoder = msgspec.json.Decoder(dict[str, object], float_hook=Decimal)
    for line, content in enumerate(text.splitlines(), 1):
        if content.strip():
            try:
                yield line, decoder.decode(content)
            except msgspec.DecodeError as error:
                raise UnreadableRecord(f"{path}, line {line}: {error}") from None


def _recorded(row: Mapping[str, object]) -> _Recorded:
    at, symbol = str(row.get("at") or ""), str(row.get("symbol") or "")
    parsed = _instant(at)
    if parsed is None:
        raise InvalidField("at", f"must be a time with its offset, such as 2026-01-05T09:00:00Z, not {at!r}")
    if not SYMBOL.fullmatch(symbol):
        raise InvalidField("symbol", f"must match {SYMBOL.pattern}, not {symbol!r}")
    bid, ask = _amount(row, "bid"), _amount(row, "ask")
    if bid > ask:
        raise InvalidField("bid", f"must not be above the ask, {bid} > {ask}")
    return _Recorded(parsed, symbol, bid, ask, _size(row, "bid_size"), _size(row, "ask_size"))


def _instant(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
        return None if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _size(row: Mapping[str, object], field: str) -> Decimal | None:
    """A displayed quantity; none where the column is missing or empty."""
    return None if row.get(field) in (None, "") else _amount(row, field)


def _amount(row: Mapping[str, object], field: str) -> Decimal:
    try:
        amount = Decimal(str(row.get(field)))
    except InvalidOperation:
        raise InvalidField(field, f"must be a number, not {row.get(field)!r}") from None
    return canonical(positive_amount(amount, field))
