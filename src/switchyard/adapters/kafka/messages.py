"""Messages of the bus topic: signed headers, and one partition as a source of events."""

import hmac
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, cast

import prometheus_client
import structlog
from confluent_kafka import Message

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.events import EventType, JournalEvent
from switchyard.domain.journal.lines import BusEvent, Offset, SourcePosition, hashed_text, parse_line
from switchyard.ports.bus import Page

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


# A page of the books. A partition with so many is full; the batch in which it gets full is added whole.
MESSAGES_MAX = 1_000
_PREFIX = "kafka:"


class Fetching(Protocol):
    """What a partition asks of the consumer; each may take a round trip."""

    async def fetch_from(self, partition: int, offset: int) -> None:
        """Fetch the partition's messages from this one on."""

    async def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first message that the brokers still have, and the number of the next one to come."""

    async def end(self, partition: int) -> int:
        """Return the number of the next message to come, as far as it is known."""

    def has_room(self) -> None:
        """Take messages again: a partition that was full is not full any more."""


class PartitionSource:
    """ports.bus.Source on one partition."""

    start: SourcePosition = Offset()

    def __init__(self, topic_id: str, partition: int, fetching: Fetching, reader: MessageReader) -> None:
        self.name = source_name(topic_id, partition)
        self._reader = reader
        self.partition = partition
        self._fetching = fetching
        self._lock = threading.Lock()
        self._waiting: deque[Message] = deque()
        self._next: int | None = None
        """The message after the last one that was taken; none before the first fetch."""
        self._is_fetched = False
        self._problem: str | None = None

    async def check(self, position: SourcePosition) -> None:
        """Raise HistoryMismatch unless the brokers have the messages from this position on."""
        wanted = offset_in(position)
        first, end = await self._fetching.bounds(self.partition)
        if not first <= wanted <= end:
            raise HistoryMismatch(self._missing(wanted, f"it has {first} to {end - 1}"))

    async def page(self, after: SourcePosition, limit: int) -> Page:
        """The messages that have arrived; HistoryMismatch where the brokers do not have the next one."""
        wanted = offset_in(after)
        if self._next != wanted or not (self._is_fetched or self._waiting):
            await self._fetching.fetch_from(self.partition, wanted)
        with self._lock:
            if self._problem is not None:
                raise HistoryMismatch(self._problem)
            if self._next != wanted:
                return Page((), after)  # taken away meanwhile: what waits is of another position
            taken = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
            if taken:
                self._next = offset_of(taken[-1]) + 1
            has_room = len(taken) + len(self._waiting) >= MESSAGES_MAX > len(self._waiting)
        if has_room:
            self._fetching.has_room()
        if not taken:
            return Page((), after)
        return Page(self._reader.events_of(self.name, taken), Offset(offset_of(taken[-1]) + 1))

    async def lag(self, position: SourcePosition) -> int:
        """How many messages are after the position, repeats included."""
        return max(await self._fetching.end(self.partition) - offset_in(position), 0)

    @property
    def is_full(self) -> bool:
        """Whether so many messages wait that the reader has to take some first."""
        return len(self._waiting) >= MESSAGES_MAX

    def put(self, message: Message) -> None:
        """Add a message that has arrived; called by the thread."""
        with self._lock:
            expected = offset_of(self._waiting[-1]) + 1 if self._waiting else self._next
            if expected is None or offset_of(message) < expected:
                return  # of a fetch from another position
            self._waiting.append(message)

    def begin(self, offset: int) -> None:
        """It is fetched from this message on, and none of before will arrive; called by the thread.

        The event loop could not do it: the thread may be adding messages of before at that moment.
        """
        with self._lock:
            self._waiting.clear()
            self._next, self._is_fetched, self._problem = offset, True, None

    def stop(self) -> None:
        """It is not fetched any more; once its reader has taken what waits, it is fetched from there on.

        Called by the thread.
        """
        with self._lock:
            self._is_fetched = False

    def forget(self) -> None:
        """Drop what has arrived: the partition is not fetched any more, and its reader has to name a position again."""
        with self._lock:
            self._waiting.clear()
            self._next, self._is_fetched, self._problem = None, False, None

    def fail(self, error: str) -> None:
        """The brokers do not have the message to fetch; called by the thread."""
        with self._lock:
            self._problem = self._missing(self._next or 0, error)

    def _missing(self, wanted: int, why: str) -> str:
        return (
            f"partition {self.partition} of the topic does not have message {wanted}, which the books read next: "
            f"{why}. Messages were deleted before they were read, or the topic is not the one that the books have read"
        )


def source_name(topic_id: str, partition: int) -> str:
    """The name of a partition in the books; a topic that was created again has other ones."""
    return f"{_PREFIX}{topic_id}:{partition}"


def topic_id_of(source: str) -> str | None:
    """The id, with the number of partitions, of the topic that a source is of; none for the journal."""
    return source.removeprefix(_PREFIX).rpartition(":")[0] if source.startswith(_PREFIX) else None


def offset_of(message: Message) -> int:
    """The message's number in its partition."""
    offset = message.offset()
    assert offset is not None, "a message that was read has an offset"
    return offset


def offset_in(position: SourcePosition) -> int:
    """The next message of a partition that was read up to this position."""
    assert isinstance(position, Offset), f"{position} is no position in a partition"
    return position.next
