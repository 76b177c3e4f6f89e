"""The results of orders over HTTP as a table, compared with the goals."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.tables import Goal, Section, at_least, below

Part = Literal["hello", "sqlite", "postgres", "redis", "peer", "peer_inside", "peer_beside"]
Kind = Literal[
    "accept",  # closed loop: each connection posts its next order after the response
    "accept, idle streams",  # the same, while many accounts without orders hold streams
    "accept, every rule",  # the same, with every pre-trade rule and limit on
    "end to end",  # the same load, until every order is final
    "end to end, paper",  # market orders at the paper exchange, the default venue
    "half load",  # posted at a fixed rate; latency from accepted to final
]

NAMES: Mapping[Part, str] = {
    "hello": "hello (bare server)",
    "sqlite": "Switchyard on SQLite",
    "postgres": "Switchyard on PostgreSQL",
    "redis": "Switchyard on PostgreSQL, with Redis",
    "peer": "peer (FastAPI + asyncpg)",
    "peer_inside": "peer, PgQueuer in its process",
    "peer_beside": "peer, PgQueuer in another process",
}
HEADINGS = ("server", "measured", "connections", "per second", "p50 ms", "p99 ms", "× before", "× hello", "× peer")
NOTE = "'× before' compares the rate with the same measurement of the base, and at half load the p99"

BASELINES: tuple[Part, ...] = ("hello", "peer")
# Both ways to run the peer's worker; the faster one is the baseline.
WORKING_PEERS: tuple[Part, ...] = ("peer_inside", "peer_beside")
HELLO_RATIO_MIN = 0.5
PEER_RATIO_MIN: Mapping[Kind, float] = {"accept": 8.0, "end to end": 5.0}
BEFORE_RATIO_MIN: Mapping[Kind, float] = {"end to end": 2.3, "end to end, paper": 3.0}
# How much throughput the cache may cost for orders that are not repeats, and streams that have nothing to send.
RULES_RATIO_MIN = 0.85
UNUSED_RATIO_MIN = 0.95
LATENCY_MS_MAX = 20.0
# With one connection no two orders share a commit: the row is shown but not compared with the goals.
JUDGED_CONNECTIONS_MIN = 2


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    part: Part
    kind: Kind
    connections: int
    per_second: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    is_base: bool = False
    note: str = ""
    """What a reader of the figures has to know."""

    @property
    def name(self) -> str:
        return server_name(self.part, is_base=self.is_base)


def server_name(part: Part, *, is_base: bool) -> str:
    return f"{NAMES[part]}, before" if is_base else NAMES[part]


def orders_section(measured: Sequence[Row]) -> Section:
    """The table; of repeated measurements it shows the medians."""
    rows = medians(measured)
    notes = [f"{row.name}, {row.kind}: {row.note}" for row in measured if row.note]
    if any(row.is_base for row in rows):
        notes.append(NOTE)
    return Section("Orders over HTTP", HEADINGS, [_cells(row, rows) for row in rows], list(goals(rows)), notes=notes)


def medians(rows: Sequence[Row]) -> list[Row]:
    """One row for each measurement, with the median of each of its figures."""
    repeated: dict[tuple[Part, Kind, int, bool], list[Row]] = {}
    for row in rows:
        repeated.setdefault((row.part, row.kind, row.connections, row.is_base), []).append(row)
    return [_median(of_one) for of_one in repeated.values()]


def _median(rows: Sequence[Row]) -> Row:
    def figure(of: Callable[[Row], float | None]) -> float | None:
        values = [value for row in rows if (value := of(row)) is not None]
        return statistics.median(values) if values else None

    return replace(
        rows[0],
        per_second=statistics.median(row.per_second for row in rows),
        p50_ms=figure(lambda row: row.p50_ms),
        p99_ms=figure(lambda row: row.p99_ms),
    )


def goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield each goal that the rows cover."""
    for row in rows:
        if row.is_base or row.part in (*BASELINES, *WORKING_PEERS) or row.connections < JUDGED_CONNECTIONS_MIN:
            continue
        text = f"{row.name}: {row.kind} at {row.connections} connections"
        for baseline, minimum in _minima(row):
            ratio = _ratio(row, baseline, rows)
            if ratio is not None:
                yield at_least(f"{text} is {ratio:.2f} × {_named(baseline)}", ratio, minimum)
        if row.kind == "half load" and row.p99_ms is not None:
            rate = f"{row.name}: accepted to final at {row.per_second:,.0f} per second"
            yield below(f"{rate} has p99 {row.p99_ms:.1f} ms", row.p99_ms, LATENCY_MS_MAX)


def _minima(row: Row) -> Iterator[tuple[Row, float]]:
    """The rows that this one is compared with, by what they have in common, and the smallest ratio."""
    if row.part == "redis":
        if row.kind == "accept":
            yield replace(row, part="postgres"), UNUSED_RATIO_MIN
        return
    if row.kind == "accept":
        yield replace(row, part="hello"), HELLO_RATIO_MIN
    if row.kind == "accept, idle streams":
        yield replace(row, kind="accept"), UNUSED_RATIO_MIN
    if row.kind == "accept, every rule":
        yield replace(row, kind="accept"), RULES_RATIO_MIN
    if row.kind in PEER_RATIO_MIN:
        yield replace(row, part="peer"), PEER_RATIO_MIN[row.kind]
    if row.kind in BEFORE_RATIO_MIN:
        yield replace(row, is_base=True), BEFORE_RATIO_MIN[row.kind]


def _named(baseline: Row) -> str:
    if baseline.is_base:
        return "before"
    return baseline.part if baseline.part in BASELINES else "without"


def _cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    times = ("" if ms is None else f"{ms:,.2f}" for ms in (row.p50_ms, row.p99_ms))
    before = None if row.is_base else _ratio(row, replace(row, is_base=True), rows)
    ratios = [before, *(_ratio(row, replace(row, part=part, is_base=False), rows) for part in BASELINES)]
    return (
        row.name,
        row.kind,
        str(row.connections),
        f"{row.per_second:,.0f}",
        *times,
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    )


def _ratio(row: Row, like: Row, rows: Sequence[Row]) -> float | None:
    """The row's figure divided by that of the row with the same server and measurement as `like`."""
    parts = (like.part, *WORKING_PEERS) if like.part == "peer" else (like.part,)
    wanted = like.kind, like.connections, like.is_base
    found = [
        other for other in rows if other.part in parts and (other.kind, other.connections, other.is_base) == wanted
    ]
    if not found:
        return None
    best = max(found, key=lambda other: other.per_second)
    if row.kind == "half load":
        return row.p99_ms / best.p99_ms if row.p99_ms and best.p99_ms else None
    return row.per_second / best.per_second
