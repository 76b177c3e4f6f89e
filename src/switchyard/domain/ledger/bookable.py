"""The events that concern the books, decoded: new orders, changes of their venue, and execution reports.

Pure. Every other event only moves the reader's place.
"""

from collections.abc import Iterable

import msgspec

from switchyard.domain.bus import BusEvent
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.events import JournalEvent
from switchyard.domain.facts import AcceptedOrder, ReportFact
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.lines import (
    data_of,
    decode_accepted_fact,
    decode_order_fact,
    decode_rejected_fact,
    decode_report_fact,
)


class Unbookable(SwitchyardError):
    """An event that the books cannot take: they stop before it, because later entries may depend on it."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"event {seq} cannot be booked: {why}")
        self.seq = seq


class NewOrder(msgspec.Struct, frozen=True):
    """An order that was accepted or rejected."""

    event: JournalEvent
    order_id: OrderId
    order: AcceptedOrder
    is_accepted: bool


class Rerouted(msgspec.Struct, frozen=True):
    """An order that was never sent has another venue."""

    event: JournalEvent
    order_id: OrderId
    venue: VenueName


class Reported(msgspec.Struct, frozen=True):
    """A report that moves units or money."""

    event: JournalEvent
    order_id: OrderId
    report: ReportFact


Bookable = NewOrder | Rerouted | Reported


def bookable(events: Iterable[BusEvent]) -> list[Bookable]:
    """The events that concern the books, in order; raises Unbookable for one that cannot be read."""
    found: list[Bookable] = []
    for taken in events:
        try:
            fact = _decoded(taken.event)
        except msgspec.DecodeError as error:
            raise Unbookable(taken.event.seq, f"its data cannot be read: {error}") from error
        if fact is not None:
            found.append(fact)
    return found


def _decoded(event: JournalEvent) -> Bookable | None:
    order_id = event.order_id
    if order_id is None:
        return None
    match event.type:
        case "OrderAccepted":
            return NewOrder(event, order_id, decode_accepted_fact(data_of(event)).order, True)
        case "RiskRejected":
            return NewOrder(event, order_id, decode_rejected_fact(data_of(event)).order, False)
        case "OrderRerouted":
            venue = decode_order_fact(data_of(event)).order.venue
            return None if venue is None else Rerouted(event, order_id, venue)
        case "ExecutionReport":
            report = decode_report_fact(data_of(event))
            return Reported(event, order_id, report) if report.last_qty or report.fee else None
        case _:
            return None
