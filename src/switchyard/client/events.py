"""Events as typed objects: the messages of a stream and the events of the journal."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from switchyard.client.sse import Message
from switchyard.client.wire import read
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.facts import (
    AcceptedFact,
    CutFact,
    EpochFact,
    KillClearedFact,
    KillFact,
    OrderFact,
    RejectedFact,
    ReportFact,
    ResultFact,
    RevisionFact,
    SetAsideFact,
)
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.orders.reports import OrderReport

Fact = (
    AcceptedFact
    | RejectedFact
    | OrderFact
    | ReportFact
    | ResultFact
    | SetAsideFact
    | EpochFact
    | CutFact
    | KillFact
    | KillClearedFact
)

_FACTS: dict[str, type[Fact] | type[dict[str, Any]]] = {
    "OrderAccepted": AcceptedFact,
    "RiskRejected": RejectedFact,
    "OrderSending": OrderFact,
    "OrderSent": OrderFact,
    "OrderUpdated": OrderFact,
    "OrderUncertain": OrderFact,
    "OrderRerouted": OrderFact,
    "OperatorDecision": OrderFact,
    "CancelRequested": OrderFact,
    "CancelSent": OrderFact,
    "AmendRequested": OrderFact,
    "Amended": OrderFact,
    "AmendRefused": OrderFact,
    "ResultRecorded": ResultFact,
    "ExecutionReport": ReportFact,
    "ExecutionRevised": RevisionFact,
    "ReportUnmatched": ReportFact,
    "ReportSetAside": SetAsideFact,
    "EpochOpened": EpochFact,
    "AuditFileCut": CutFact,
    "KillSwitchSet": KillFact,
    "KillSwitchCleared": KillClearedFact,
}


class RecordedEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One event of the journal; `data` is the JSON text as written."""

    epoch: int
    shard: int
    seq: int
    at: datetime
    type: str
    account_id: AccountId
    order_id: OrderId | None
    data: msgspec.Raw
    hash: str

    @property
    def fact(self) -> Fact | dict[str, Any]:
        """The data as a typed object; a plain dictionary for a type that this version does not know."""
        kind = _FACTS.get(self.type, dict[str, Any])
        return read(bytes(self.data), kind)


class EventPage(msgspec.Struct, frozen=True, rename="camel"):
    """The body of `GET /orders/{orderId}/events` and `GET /accounts/{accountId}/events`."""

    events: list[RecordedEvent]
    next_cursor: str | None = None


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a stream. Base of the classes below; a message that is none of them is an `UnknownEvent`."""

    message: Message
    """The message as received."""

    @property
    def id(self) -> str | None:
        """Pass it as `last_event_id` to resume after this message."""
        return self.message.id


class StreamReady(StreamEvent, frozen=True, kw_only=True):
    """The stream is open; everything from here on arrives."""


class OrderUpdate(StreamEvent, frozen=True, kw_only=True):
    """An order after a change, or its current state at the beginning of its stream."""

    order: OrderSnapshot


class ExecutionReported(StreamEvent, frozen=True, kw_only=True):
    """A venue's report, for example of a fill; the `OrderUpdate` that it caused follows."""

    report: OrderReport


class ResyncRequired(StreamEvent, frozen=True, kw_only=True):
    """Messages are missing here. Read the current state with `order` or `orders`; the stream continues."""

    scope: Literal["order", "account"]
    last_event_id: int
    oldest_available_id: int
    events_endpoint: str
    """The path at which the missed events can be read."""


class TokenExpired(StreamEvent, frozen=True, kw_only=True):
    """The token has expired and the stream ends here: open one after `id` with a new token."""


class ServerClosing(StreamEvent, frozen=True, kw_only=True):
    """The gateway stops and the stream ends here; `stream` connects again by itself."""


class UnknownEvent(StreamEvent, frozen=True, kw_only=True):
    """A message that a newer gateway added; ignore it."""


class _Resync(msgspec.Struct, frozen=True, rename="camel"):
    scope: Literal["order", "account"]
    last_event_id: int
    oldest_available_id: int
    events_endpoint: str


def stream_event(message: Message) -> StreamEvent:
    """The message as a typed event; raises UnreadableResponse if its data does not match its name."""
    match message.event:
        case "ready":
            return StreamReady(message=message)
        case "order_snapshot" | "order_update":
            return OrderUpdate(message=message, order=read(message.data, OrderSnapshot))
        case "execution_report":
            return ExecutionReported(message=message, report=read(message.data, OrderReport))
        case "resync_required":
            fields = msgspec.structs.asdict(read(message.data, _Resync))
            return ResyncRequired(message=message, **fields)
        case "token_expired":
            return TokenExpired(message=message)
        case "server_closing":
            return ServerClosing(message=message)
        case _:
            return UnknownEvent(message=message)
