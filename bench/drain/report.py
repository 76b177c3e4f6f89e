"""The drains as a table, on the screen and as Markdown, and the goal they are held against."""

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
    """One queue worked off by one process."""

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
    for one in drains:
        table.add_row(*_cells(one, drains))
    console.print(table)
    for met, line in goals(drains):
        console.print(f"[green]pass[/]         {line}" if met else f"[red]falls short[/]  {line}", highlight=False)


def drains_markdown(drains: Sequence[Drain]) -> str:
    if not drains:
        return ""
    lines = ["", f"## {TITLE}", "", f"| {' | '.join(HEADINGS)} |", "|---|---|" + "---:|" * (len(HEADINGS) - 2)]
    lines += [f"| {' | '.join(_cells(one, drains))} |" for one in drains]
    lines += ["", *(f"- {'pass' if met else 'falls short'}: {line}" for met, line in goals(drains))]
    return "\n".join(lines).rstrip() + "\n"


def goals(drains: Sequence[Drain]) -> Iterator[tuple[bool, str]]:
    """The outbox is not slower than a queue that does nothing else. Fills come on top and are only shown."""
    for one in drains:
        if one.queue == "Switchyard":
            for peer in PEERS:
                ratio = _ratio(one, peer, drains)
                if ratio is not None:
                    what = f"the outbox drains at {ratio:.2f} × {peer}"
                    yield ratio >= RATIO_MIN, f"Switchyard: {what}, goal at least {RATIO_MIN:g}"


def _cells(one: Drain, drains: Sequence[Drain]) -> tuple[str, ...]:
    ratios = (_ratio(one, peer, drains) for peer in PEERS)
    return (
        one.queue,
        one.setup,
        f"{one.rows:,}",
        f"{one.seconds:,.2f}",
        f"{one.per_second:,.0f}",
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    )


def _ratio(one: Drain, peer: str, drains: Sequence[Drain]) -> float | None:
    for other in drains:
        if other.queue == peer:
            return one.per_second / other.per_second
    return None
