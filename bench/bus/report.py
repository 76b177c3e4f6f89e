"""The relay, the back office on Kafka and a rebuild as a table, compared with the goal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.memory import MIB
from bench.tables import Goal, Section, at_least

HEADINGS = ("step", "broker", "what", "number", "seconds", "per second", "peak memory (MiB)")
# They must not be slower than the orders that they follow; the tenth is for the last page and the once-a-second place.
RATIO_MIN = 0.9


@dataclass(frozen=True)
class BusStep:
    """How long a step took for all orders of the run."""

    step: str
    broker: str
    what: str
    number: int
    seconds: float
    memory_bytes: int = 0
    behind_seconds: float | None = None
    """How long after the last order it was done; none for a step that does not follow orders."""

    @property
    def per_second(self) -> float:
        return self.number / self.seconds


def bus_section(steps: Sequence[BusStep]) -> Section:
    """The table."""
    rows = [
        (
            step.step,
            step.broker,
            step.what,
            f"{step.number:,}",
            f"{step.seconds:,.2f}",
            f"{step.per_second:,.0f}",
            f"{step.memory_bytes / MIB:,.0f}" if step.memory_bytes else "",
        )
        for step in steps
    ]
    return Section("Relay, back office and rebuild", HEADINGS, rows, list(_goals(steps)), text_columns=3)


def _goals(steps: Sequence[BusStep]) -> Iterator[Goal]:
    for step in steps:
        if step.behind_seconds is not None:
            ratio = (step.seconds - step.behind_seconds) / step.seconds
            yield at_least(
                f"{step.step}: {step.behind_seconds:.1f} s behind the last order, {ratio:.2f} × the orders' rate",
                ratio,
                RATIO_MIN,
            )
