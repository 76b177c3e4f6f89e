"""The drains as a table, compared with the goal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.tables import Goal, Section, at_least

PEERS = ("PgQueuer", "Procrastinate")
HEADINGS = ("queue", "set-up", "rows", "seconds", "rows per second", *(f"× {peer}" for peer in PEERS))
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


def drain_section(drains: Sequence[Drain]) -> Section:
    rows = [_cells(drain, drains) for drain in drains]
    return Section("Outbox drain on PostgreSQL", HEADINGS, rows, list(_goals(drains)))


def _goals(drains: Sequence[Drain]) -> Iterator[Goal]:
    """The outbox must not be slower than the peers; the row with fills is shown without a goal."""
    for drain in drains:
        if drain.queue == "Switchyard":
            for peer in PEERS:
                ratio = _ratio(drain, peer, drains)
                if ratio is not None:
                    yield at_least(f"Switchyard: the outbox drains at {ratio:.2f} × {peer}", ratio, RATIO_MIN)


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
