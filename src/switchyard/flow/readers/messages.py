"""Stream messages: which events have one, and the messages that need no order. Pure functions."""

from typing import Literal
from urllib.parse import quote

import msgspec

from switchyard.domain.journal.events import ORDER_EVENTS, JournalEvent, encode

Scope = Literal["account", "order"]
Topic = tuple[Scope, str]


class Message(msgspec.Struct, frozen=True):
    """One message of a stream; `id` is the journal number to continue after, `data` is JSON."""

    id: int
    event: str
    data: bytes


def has_message(event: JournalEvent) -> bool:
    """Whether streams show the event: it changed an order, or is a report on one."""
    return event.type in ORDER_EVENTS or event.type == "ExecutionReport"


def signal_of(event: JournalEvent) -> Message:
    """A message without data, for subscribers that only wait for something to happen."""
    return Message(event.seq, "execution_report" if event.type == "ExecutionReport" else "order_update", b"")


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
