"""Events as messages: the value is the event's line, the key its account.

Headers carry its place and the installation whose journal it is of: numbers of two installations cannot be compared.
"""

from typing import cast

from confluent_kafka import Message

from switchyard.domain.bus import BusEvent
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.events import EventType, JournalEvent
from switchyard.domain.lines import hashed_text, parse_line

EPOCH, SEQ, HASH, PREVIOUS_SEQ, INSTALLATION = "epoch", "seq", "hash", "previousSeq", "installation"
TRACEPARENT = "traceparent"
"""Only where traces are on; as the W3C specification names it."""


def headers_of(event: BusEvent, installation: str) -> list[tuple[str, str | bytes | None]]:
    """The headers of an event's message."""
    assert event.previous_seq is not None, "the relay links every event"
    headers: list[tuple[str, str | bytes | None]] = [
        (EPOCH, b"%d" % event.epoch),
        (SEQ, b"%d" % event.event.seq),
        (HASH, event.event.hash.encode()),
        (PREVIOUS_SEQ, b"%d" % event.previous_seq),
        (INSTALLATION, installation.encode()),
    ]
    if event.traceparent is not None:
        headers.append((TRACEPARENT, event.traceparent.encode()))
    return headers


def event_of(message: Message, installation: str) -> BusEvent:
    """The event of a message; HistoryMismatch where it is none of this installation."""
    try:
        event, owner = _event(message)
    except (ValueError, KeyError) as error:
        raise HistoryMismatch(
            f"message {message.offset()} of partition {message.partition()} is not an event of the journal ({error}): "
            "only the relay may write to the topic"
        ) from None
    if owner != installation:
        raise HistoryMismatch(
            f"message {message.offset()} of partition {message.partition()} is an event of the installation {owner}, "
            f"and these books are of the installation {installation}: two installations publish to one topic. Give "
            "each a topic of its own (KAFKA_TOPIC), and have the books read a new one (docs/operate/kafka.md)"
        )
    return event


def _event(message: Message) -> tuple[BusEvent, str]:
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
    owner = headers[INSTALLATION]
    if not isinstance(owner, bytes):
        raise ValueError("a header has no value")
    traceparent = _text(headers.get(TRACEPARENT))
    return BusEvent(line.epoch, event, _number(headers[PREVIOUS_SEQ]), traceparent), owner.decode()


def _text(header: bytes | str | None) -> str | None:
    return header.decode("latin-1") if isinstance(header, bytes) else header


def _number(text: bytes | str | None) -> int:
    if text is None:
        raise ValueError("a header has no value")
    return int(text)
