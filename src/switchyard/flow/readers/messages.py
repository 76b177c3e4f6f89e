"""Stream messages: the part of a journal event that subscribers see. Pure functions of the event."""

from typing import Literal
from urllib.parse import quote

import msgspec

from switchyard.domain.events import JournalEvent, encode
from switchyard.domain.lines import data_of, order_of

Scope = Literal["account", "order"]
Topic = tuple[Scope, str]


class Message(msgspec.Struct, frozen=True):
    """One message of a stream; `id` is the journal number to continue after."""

    id: int
    event: str
    data: bytes


def message_of(event: JournalEvent) -> Message | None:
    """The message for an event, its data byte for byte as in the journal line; none for events without an order."""
    if event.type == "ExecutionReport":
        return Message(event.seq, "execution_report", bytes(data_of(event)))
    order = order_of(event)
    return None if order is None else Message(event.seq, "order_update", bytes(order))


def resync_message(topic: Topic, last_event_id: int, start: int) -> Message:
    """Tell the subscriber to load events up to `start` from the events endpoint; the stream continues after `start`."""
    scope, id = topic
    data = {
        "scope": scope,
        "id": id,
        "lastEventId": last_event_id,
        "oldestAvailableId": start,
        "eventsEndpoint": f"/{scope}s/{quote(id, safe='')}/events",
    }
    return Message(start, "resync_required", encode(data))
