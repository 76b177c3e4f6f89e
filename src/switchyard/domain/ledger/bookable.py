"""The events that concern the books, decoded: new orders, changes of their venue, executions and their revisions.

Pure. Every other event only moves the place of its account.
"""

from collections.abc import Iterable

import msgspec

from switchyard.domain.bus import BusEvent
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


class Revised(msgspec.Struct, frozen=True):
    """A correction or a bust of an earlier execution."""

    event: JournalEvent
    order_id: OrderId
    report: ReportFact


Bookable = NewOrder | Rerouted | Reported | Revised


class ReadEvent(msgspec.Struct, frozen=True):
    """An event of the bus with what it means for the books."""

    taken: BusEvent
    fact: Bookable | None
    """None where it only moves the account's place."""
    problem: str | None = None
    """Why it cannot be read."""


def read_events(events: Iterable[BusEvent]) -> list[ReadEvent]:
    """The events, decoded, in order."""
    return [_read(taken) for taken in events]


def _read(taken: BusEvent) -> ReadEvent:
    try:
        return ReadEvent(taken, _decoded(taken.event))
    except msgspec.DecodeError as error:
        return ReadEvent(taken, None, f"its data cannot be read: {error}")


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
        case "ExecutionRevised":
            return Revised(event, order_id, decode_report_fact(data_of(event)))
        case _:
            return None
