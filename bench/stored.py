"""Bytes that an order occupies once it is final: in the database and in the audit file."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.contenders import Contender
from bench.report import Part, server_name
from bench.stores import POLL_SECONDS, count_orders
from bench.tables import Goal, Section

HEADINGS = ("server", "orders", "database bytes", "audit bytes", "bytes per order", "× before")
RATIO_MAX = 0.5
# The audit file follows the journal; it is complete if it has not grown for this many polls.
STILL_POLLS = 3


@dataclass(frozen=True)
class Stored:
    """The sizes after an end-to-end run, without those of an empty database."""

    part: Part
    orders: int
    database_bytes: int
    audit_bytes: int
    is_base: bool = False

    @property
    def per_order(self) -> float:
        return (self.database_bytes + self.audit_bytes) / self.orders


def measure_stored(contender: Contender, part: Part, empty_bytes: int, *, is_base: bool) -> Stored:
    """Read the sizes; the server must have finished every order."""
    assert contender.store is not None, "only a server with a database stores orders"
    audit_bytes = _audit_bytes(contender.folder)
    database_bytes = contender.store.bytes() - empty_bytes
    return Stored(part, count_orders(contender.store), database_bytes, audit_bytes, is_base)


def stored_section(measured: Sequence[Stored]) -> Section:
    """The table; of repeated measurements, which hardly differ, it shows the last."""
    results = list({(stored.part, stored.is_base): stored for stored in measured}.values())
    rows = [_cells(stored, results) for stored in results]
    return Section("Bytes per order, end to end", HEADINGS, rows, list(_goals(results)), text_columns=1)


def _audit_bytes(folder: Path) -> int:
    """The size of the audit files once they have stopped growing; the peer has none."""
    size, still = -1, 0
    while still < STILL_POLLS:
        previous, size = size, sum(path.stat().st_size for path in folder.glob("data/gateway/*"))
        still = still + 1 if size == previous else 0
        time.sleep(POLL_SECONDS)
    return size


def _cells(stored: Stored, results: Sequence[Stored]) -> tuple[str, ...]:
    ratio = _ratio(stored, results)
    sizes = (stored.orders, stored.database_bytes, stored.audit_bytes)
    return (
        server_name(stored.part, is_base=stored.is_base),
        *(f"{size:,}" for size in sizes),
        f"{stored.per_order:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
    )


def _goals(results: Sequence[Stored]) -> Iterator[Goal]:
    for stored in results:
        ratio = _ratio(stored, results)
        if ratio is not None:
            name = server_name(stored.part, is_base=False)
            text = f"{name}: an order occupies {ratio:.2f} × the bytes of before, goal at most {RATIO_MAX:g}"
            yield Goal(ratio <= RATIO_MAX, text)


def _ratio(stored: Stored, results: Sequence[Stored]) -> float | None:
    if not stored.is_base:
        for other in results:
            if other.part == stored.part and other.is_base:
                return stored.per_order / other.per_order
    return None
