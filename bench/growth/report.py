"""The growth as a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.memory import MIB
from bench.report import NAMES, Part
from bench.tables import Section

HEADINGS = (
    "server",
    "orders",
    "accepts per second",
    "claims per second",
    "GET /orders p50 ms",
    "p99 ms",
    "GET /orders/{id} p50 ms",
    "p99 ms",
    "restart s",
    "MiB",
)


@dataclass(frozen=True)
class Growth:
    """The figures of one server with this many orders in its database."""

    part: Part
    orders: int
    accepts_per_second: float
    claims_per_second: float
    """Queued orders that a started worker sent and recorded as filled."""
    list_p50_ms: float
    list_p99_ms: float
    order_p50_ms: float
    order_p99_ms: float
    restart_seconds: float
    """From the start of the process until it is healthy."""
    memory_bytes: int
    """Resident after the restart and the queries."""


def growth_section(results: Sequence[Growth]) -> Section:
    return Section("Growth of the database", HEADINGS, [_cells(result) for result in results], text_columns=1)


def _cells(result: Growth) -> tuple[str, ...]:
    times = (result.list_p50_ms, result.list_p99_ms, result.order_p50_ms, result.order_p99_ms)
    return (
        NAMES[result.part],
        f"{result.orders:,}",
        f"{result.accepts_per_second:,.0f}",
        f"{result.claims_per_second:,.0f}",
        *(f"{ms:.2f}" for ms in times),
        f"{result.restart_seconds:.2f}",
        f"{result.memory_bytes / MIB:,.0f}",
    )
