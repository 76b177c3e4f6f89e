"""Prints the results as a table, on the screen and as Markdown, and compares them with the goals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

Part = Literal["hello", "sqlite", "postgres", "redis", "peer"]
Kind = Literal[
    "accept",  # closed loop: each connection posts its next order after the response
    "end to end",  # the same load, until every order is final
    "half load",  # posted at half the end-to-end rate; latency from accepted to final
]

NAMES: Mapping[Part, str] = {
    "hello": "hello (bare server)",
    "sqlite": "Switchyard on SQLite",
    "postgres": "Switchyard on PostgreSQL",
    "redis": "Switchyard on PostgreSQL, with Redis",
    "peer": "peer (FastAPI + asyncpg)",
}
HEADINGS = ("server", "measured", "connections", "per second", "p50 ms", "p99 ms", "× hello", "× peer")

HELLO_RATIO_MIN = 0.5
PEER_RATIO_MIN = 8.0
# How much throughput the cache may cost for orders that are not repeats and so do not benefit from it.
CACHED_RATIO_MIN = 0.95
LATENCY_MS_MAX = 25.0
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


def print_report(console: Console, facts: Mapping[str, str], rows: Sequence[Row]) -> None:
    for name, text in facts.items():
        console.print(f"[bold]{name:>10}[/]  {text}", highlight=False)
    if not rows:
        return
    table = Table(*HEADINGS, title="Orders over HTTP", title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*_cells(row, rows))
    console.print(table)
    for passed, line in goals(rows):
        console.print(f"[green]pass[/]         {line}" if passed else f"[red]falls short[/]  {line}", highlight=False)


def markdown(facts: Mapping[str, str], rows: Sequence[Row]) -> str:
    lines = [f"- {name}: {text}" for name, text in facts.items()]
    if rows:
        lines += ["", f"| {' | '.join(HEADINGS)} |", "|---|---|" + "---:|" * (len(HEADINGS) - 2)]
        lines += [f"| {' | '.join(_cells(row, rows))} |" for row in rows]
    lines += ["", *(f"- {'pass' if passed else 'falls short'}: {line}" for passed, line in goals(rows))]
    return "\n".join(lines).rstrip() + "\n"


def goals(rows: Sequence[Row]) -> Iterator[tuple[bool, str]]:
    """Yield each goal that the rows cover, and whether it is met."""
    for row in rows:
        name = NAMES[row.part]
        if row.kind == "accept" and row.part in ("sqlite", "postgres") and row.connections >= JUDGED_CONNECTIONS_MIN:
            for baseline, ratio_min in (("hello", HELLO_RATIO_MIN), ("peer", PEER_RATIO_MIN)):
                ratio = _ratio(row, baseline, rows)
                if ratio is not None:
                    text = f"accept at {row.connections} connections is {ratio:.2f} × {baseline}"
                    yield ratio >= ratio_min, f"{name}: {text}, goal at least {ratio_min:g}"
        if row.kind == "accept" and row.part == "redis" and row.connections >= JUDGED_CONNECTIONS_MIN:
            ratio = _ratio(row, "postgres", rows)
            if ratio is not None:
                text = f"accept at {row.connections} connections is {ratio:.2f} × without"
                yield ratio >= CACHED_RATIO_MIN, f"{name}: {text}, goal at least {CACHED_RATIO_MIN:g}"
        if row.kind == "half load" and row.p99_ms is not None:
            # The goal is for accepted to sent, which is part of accepted to final, so meeting it here is sufficient.
            text = f"accepted to final at half load has p99 {row.p99_ms:.1f} ms"
            yield row.p99_ms < LATENCY_MS_MAX, f"{name}: {text}, goal below {LATENCY_MS_MAX:g}"


def _cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    times = ("" if ms is None else f"{ms:,.2f}" for ms in (row.p50_ms, row.p99_ms))
    ratios = (_ratio(row, baseline, rows) for baseline in ("hello", "peer"))
    return (
        NAMES[row.part],
        row.kind,
        str(row.connections),
        f"{row.per_second:,.0f}",
        *times,
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    )


def _ratio(row: Row, baseline: str, rows: Sequence[Row]) -> float | None:
    """The accept rate divided by that of the baseline at the same number of connections; None for other kinds."""
    for other in rows:
        if row.kind == "accept" and other.part == baseline and other.connections == row.connections:
            return row.per_second / other.per_second
    return None
