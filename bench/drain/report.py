"""Prints the drains as a table, on the screen and as Markdown, and compares them with the goal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

PEERS = ("PgQueuer", "Procrastinate")
HEADINGS = ("queue", "set-up", "rows", "seconds", "rows per second", *(f"× {peer}" for peer in PEERS))
TITLE = "Outbox drain on PostgreSQL"
RATIO_MIN = 1.0


@dataclass(frozen=True)
class Drain:
    """The result for one queue, drained by one process."""

    queue: str
    setup: str
    rows: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.rows / self.seconds


def print_drains(console: Console, drains: Sequence[Drain]) -> None:
    if not drains:
        return
    table = Table(*HEADINGS, title=TITLE, title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for drain in drains:
        table.add_row(*_cells(drain, drains))
    console.print(table)
    for passed, line in goals(drains):
        console.print(f"[green]pass[/]         {line}" if passed else f"[red]falls short[/]  {line}", highlight=False)


def drains_markdown(drains: Sequence[Drain]) -> str:
    if not drains:
        return ""
    lines = ["", f"## {TITLE}", "", f"| {' | '.join(HEADINGS)} |", "|---|---|" + "---:|" * (len(HEADINGS) - 2)]
    lines += [f"| {' | '.join(_cells(drain, drains))} |" for drain in drains]
    lines += ["", *(f"- {'pass' if passed else 'falls short'}: {line}" for passed, line in goals(drains))]
    return "\n".join(lines).rstrip() + "\n"


def goals(drains: Sequence[Drain]) -> Iterator[tuple[bool, str]]:
    """The outbox must not be slower than the peers; the row with fills is shown without a goal."""
    for drain in drains:
        if drain.queue == "Switchyard":
            for peer in PEERS:
                ratio = _ratio(drain, peer, drains)
                if ratio is not None:
                    text = f"the outbox drains at {ratio:.2f} × {peer}"
                    yield ratio >= RATIO_MIN, f"Switchyard: {text}, goal at least {RATIO_MIN:g}"


def _cells(drain: Drain, drains: Sequence[Drain]) -> tuple[str, ...]:
    ratios = (_ratio(drain, peer, drains) for peer in PEERS)
    return (
        drain.queue,
        drain.setup,
        f"{drain.rows:,}",
        f"{drain.seconds:,.2f}",
        f"{drain.per_second:,.0f}",
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    )


def _ratio(drain: Drain, peer: str, drains: Sequence[Drain]) -> float | None:
    for other in drains:
        if other.queue == peer:
            return drain.per_second / other.per_second
    return None
