"""Events as messages: the value is the event's line, the key its account, and headers carry its place."""

from typing import cast

from confluent_kafka import Message

from switchyard.domain.bus import BusEvent
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.events import EventType, JournalEvent
from switchyard.domain.lines import hashed_text, parse_line

EPOCH, SEQ, HASH, PREVIOUS_SEQ = "epoch", "seq", "hash", "previousSeq"
TRACEPARENT = "traceparent"
"""Only where traces are on; as the W3C specification names it."""


def headers_of(event: BusEvent) -> list[tuple[str, str | bytes | None]]:
    """The headers of an event's message."""
    assert event.previous_seq is not None, "the relay links every event"
    headers: list[tuple[str, str | bytes | None]] = [
        (EPOCH, b"%d" % event.epoch),
        (SEQ, b"%d" % event.event.seq),
        (HASH, event.event.hash.encode()),
        (PREVIOUS_SEQ, b"%d" % event.previous_seq),
    ]
    if event.traceparent is not None:
        headers.append((TRACEPARENT, event.traceparent.encode()))
    return headers


def event_of(message: Message) -> BusEvent:
    """The event of a message; HistoryMismatch where it is none: somebody else writes to the topic."""
    try:
        return _event(message)
    except (ValueError, KeyError) as error:
        raise HistoryMismatch(
            f"message {message.offset()} of partition {message.partition()} is not an event of the journal ({error}): "
            "only the relay may write to the topic"
        ) from None


def _event(message: Message) -> BusEvent:
    value, headers = message.value(), dict(message.headers() or ())
    if value is None:
        raise ValueError("it has no value")
    raw = value + b"\n"
    line = parse_line(raw)
    found = (_number(headers[EPOCH]), _number(headers[SEQ]), headers[HASH], message.key())
    if found != (line.epoch, line.seq, line.hash.encode(), line.account_id.encode()):
        raise ValueError("its headers and its value do not agree")
    event = JournalEvent(
        seq=line.seq,
        at=line.at,
        type=cast(EventType, line.type),  # a newer version may have more types
        account_id=line.account_id,
        order_id=line.order_id,
        text=hashed_text(raw).decode(),
        hash=line.hash,
    )
    return BusEvent(line.epoch, event, _number(headers[PREVIOUS_SEQ]), _text(headers.get(TRACEPARENT)))


def _text(header: bytes | str | None) -> str | None:
    return header.decode("latin-1") if isinstance(header, bytes) else header


def _number(text: bytes | str | None) -> int:
    if text is None:
        raise ValueError("a header has no value")
    return int(text)
