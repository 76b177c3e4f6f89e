"""Events as messages: the value is the event's line, the key its account.

Headers carry its place, the installation whose journal it is of (numbers of two installations cannot be compared) and a
signature: the topic may have other writers, and only messages that the relay signed are booked (ADR 49).
"""

import hmac
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import prometheus_client
import structlog
from confluent_kafka import Message

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.events import EventType, JournalEvent
from switchyard.domain.journal.lines import BusEvent, hashed_text, parse_line

log = structlog.get_logger()

EPOCH, SEQ, HASH, PREVIOUS_SEQ, INSTALLATION = "epoch", "seq", "hash", "previousSeq", "installation"
SIGNATURE = "signature"
TRACEPARENT = "traceparent"
"""Only where traces are on; as the W3C specification names it."""

Rejection = Literal["unsigned", "signature"]


def headers_of(event: BusEvent, installation: str, source: str, key: bytes) -> list[tuple[str, str | bytes | None]]:
    """The headers of an event's message, signed for the partition that `source` names."""
    assert event.previous_seq is not None, "the relay links every event"
    headers = {
        EPOCH: b"%d" % event.epoch,
        SEQ: b"%d" % event.event.seq,
        HASH: event.event.hash.encode(),
        PREVIOUS_SEQ: b"%d" % event.previous_seq,
        INSTALLATION: installation.encode(),
    }
    if event.traceparent is not None:
        headers[TRACEPARENT] = event.traceparent.encode()
    signature = _signature(key, source, headers, event.event.account_id.encode(), event.event.line.encode())
    return [*headers.items(), (SIGNATURE, signature)]


class MessageReader:
    """Reads the events of one installation from messages; messages that it did not sign are dropped and counted."""

    def __init__(self, installation: str, keys: Sequence[bytes], rejected: prometheus_client.Counter) -> None:
        """`keys`: a message that one of them signed is genuine."""
        self._installation = installation
        self._keys = keys
        self._rejected = rejected

    def events_of(self, source: str, messages: Sequence[Message]) -> tuple[BusEvent, ...]:
        """The events of a partition's next messages; HistoryMismatch for a genuine one that cannot be read.

        A message that another program wrote says nothing about the events: it neither stops the partition nor counts
        as one of an account.
        """
        genuine, dropped, first = [], Counter[Rejection](), None
        for message in messages:
            rejection = self._rejection(source, message)
            if rejection is None:
                genuine.append(message)
            else:
                dropped[rejection] += 1
                first = message.offset() if first is None else first
        for reason, count in dropped.items():
            self._rejected.labels(reason).inc(count)
        if dropped:  # one line for a page: the writer decides how many messages there are
            log.error(
                "bus_messages_rejected",
                source=source,
                offset=first,
                unsigned=dropped["unsigned"],
                signature=dropped["signature"],
            )
        return tuple(_event_of(message, self._installation) for message in genuine)

    def _rejection(self, source: str, message: Message) -> Rejection | None:
        headers = _headers(message)
        found = headers.get(SIGNATURE)
        if found is None:
            return "unsigned"
        key, value = message.key() or b"", message.value() or b""
        for each in self._keys:
            if hmac.compare_digest(_signature(each, source, headers, key, value), found):
                return None
        return "signature"


def _signature(key: bytes, source: str, headers: Mapping[str, bytes], account: bytes, value: bytes) -> bytes:
    """HMAC-SHA256 over everything that a reader uses, each part with its length before it.

    The partition is part of it, because a copy of a genuine message in another one would look like a gap there.
    """
    parts = [b"switchyard bus 1", source.encode()]
    parts += [headers.get(name, b"") for name in (EPOCH, SEQ, HASH, PREVIOUS_SEQ, INSTALLATION, TRACEPARENT)]
    parts += [account, value]
    signed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, signed, "sha256").hex().encode()


def _event_of(message: Message, installation: str) -> BusEvent:
    try:
        event, owner = _event(message)
    except (ValueError, KeyError) as error:
        raise HistoryMismatch(
            f"message {message.offset()} of partition {message.partition()} is signed and is not an event of the "
            f"journal ({error}): only the relay may sign messages"
        ) from None
    if owner != installation:
        raise HistoryMismatch(
            f"message {message.offset()} of partition {message.partition()} is an event of the installation {owner}, "
            f"and these books are of the installation {installation}: two installations publish to one topic with one "
            "key. Give each a topic (KAFKA_TOPIC) and a key (SWITCHYARD_BUS_KEY) of its own, and have the books read "
            "a new one (docs/operate/kafka.md)"
        )
    return event


def _event(message: Message) -> tuple[BusEvent, str]:
    value, headers = message.value(), _headers(message)
    if value is None:
        raise ValueError("it has no value")
    raw = value + b"\n"
    line = parse_line(raw)
    found = (int(headers[EPOCH]), int(headers[SEQ]), headers[HASH], message.key())
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
    traceparent = headers[TRACEPARENT].decode() if TRACEPARENT in headers else None
    return BusEvent(line.epoch, event, int(headers[PREVIOUS_SEQ]), traceparent), headers[INSTALLATION].decode()


def _headers(message: Message) -> dict[str, bytes]:
    """The last header of each name, if it has a value: what is checked is what is read."""
    return {name: value for name, value in dict(message.headers() or ()).items() if isinstance(value, bytes)}
