"""Journal lines: their text and members, the hash chain, the signed head, the digest of a state, and a line on the
bus.

Streams, `/do/order`, the audit file, verification and replay all decode through this module. Pure.
"""

import hashlib
import hmac
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.events import NEW_ORDER_EVENTS, ORDER_EVENTS, Event, JournalEvent, members_text
from switchyard.domain.journal.facts import (
    AcceptedFact,
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
from switchyard.domain.orders.order import Order
from switchyard.domain.values import plain

GENESIS = "0" * 64


def stamp(at: datetime) -> str:
    """A time as in a line: UTC with six decimals, so that text order is time order."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def head_text(epoch: int, shard: int, seq: int, at_text: str) -> str:
    """The beginning of a line, with the number and time that the journal assigns."""
    return f'{{"epoch":{epoch},"shard":{shard},"seq":{seq},"at":"{at_text}",'


def link(previous_hash: str, text: str) -> str:
    """SHA-256 over the previous hash (as hex) followed by the line up to its own hash."""
    return hashlib.sha256((previous_hash + text).encode()).hexdigest()


# A line holds one order or a change of it: a kilobyte. The bound keeps a file without line ends out of memory.
LINE_BYTES_MAX = 1 << 20
# The first bytes of every line.
LINE_START = b'{"epoch":'
# The part after the hashed text: `,"hash":"`, 64 hex digits, `"}` and the line end.
_HASH_BYTES = 76
_HASH_START = b',"hash":"'
_DATA_START = ',"data":'


class AuditLine(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The members of a whole line; `data` is left encoded."""

    epoch: int
    shard: int
    seq: int
    at: datetime
    type: str
    account_id: AccountId
    order_id: OrderId | None
    data: msgspec.Raw
    hash: str


class _Version(msgspec.Struct):
    version: int


class _VersionData(msgspec.Struct):
    order: _Version


_line = msgspec.json.Decoder(AuditLine)
_version_data = msgspec.json.Decoder(_VersionData)

decode_accepted_fact = msgspec.json.Decoder(AcceptedFact).decode
"""The data of `OrderAccepted`."""
decode_rejected_fact = msgspec.json.Decoder(RejectedFact).decode
"""The data of `RiskRejected`."""
decode_order_fact = msgspec.json.Decoder(OrderFact).decode
"""The data of an event that changed an order after its acceptance."""
decode_report_fact = msgspec.json.Decoder(ReportFact).decode
"""The data of `ExecutionReport` and `ReportUnmatched`, and the report of an `ExecutionRevised`."""
decode_revision_fact = msgspec.json.Decoder(RevisionFact).decode
"""The data of `ExecutionRevised`."""
decode_epoch_fact = msgspec.json.Decoder(EpochFact).decode
"""The data of `EpochOpened`."""
decode_result_fact = msgspec.json.Decoder(ResultFact).decode
"""The data of `ResultRecorded`."""
decode_set_aside_fact = msgspec.json.Decoder(SetAsideFact).decode
"""The data of `ReportSetAside`."""
decode_kill_fact = msgspec.json.Decoder(KillFact).decode
"""The data of `KillSwitchSet`."""
decode_kill_cleared_fact = msgspec.json.Decoder(KillClearedFact).decode
"""The data of `KillSwitchCleared`."""


def parse_line(raw: bytes) -> AuditLine:
    """Decode a whole line, line end included; ValueError unless it has exactly the journal's layout."""
    try:
        line = _line.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not an audit line ({error})") from None
    start = head_text(line.epoch, line.shard, line.seq, stamp(line.at))
    start += members_text(line.type, line.account_id, line.order_id)
    if (
        not raw.startswith(start.encode())
        or raw[-_HASH_BYTES : -_HASH_BYTES + len(_HASH_START)] != _HASH_START
        or not raw.endswith(b'"}\n')
    ):
        raise ValueError("not in the layout in which the journal writes lines")
    return line


def hashed_text(raw: bytes) -> bytes:
    """The bytes of a whole line that its hash covers."""
    return raw[:-_HASH_BYTES]


def line_hash(previous_hash: str, raw: bytes) -> str:
    """The hash that a whole line must carry after a line with `previous_hash`."""
    return hashlib.sha256(previous_hash.encode() + hashed_text(raw)).hexdigest()


def data_of(event: JournalEvent | Event) -> msgspec.Raw:
    """The event's data, byte for byte as in its line; also of an event that is not in the journal yet."""
    return msgspec.Raw(data_text(event).encode())


def data_text(event: JournalEvent | Event) -> str:
    """The same as text. In the members before it, a quotation mark is escaped."""
    if isinstance(event, Event):
        return event.data
    return event.text[event.text.index(_DATA_START) + len(_DATA_START) :]


def version_of(event: JournalEvent | Event) -> int | None:
    """The version of its order that the event made; none if it made none."""
    if event.type not in ORDER_EVENTS:
        return None
    return 1 if event.type in NEW_ORDER_EVENTS else _version_data.decode(data_text(event)).order.version


class SignedHead(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's last event at a point in time; `mac` authenticates the other fields."""

    epoch: int
    shard: int
    seq: int
    hash: str
    at: str
    installation: str = ""
    """The id of the database's installation; empty where it is not known."""
    database: str = ""
    """The place of the database, without credentials: its folder or URL; empty where it is not known."""
    mac: str = ""

    def signed(self, key: bytes) -> "SignedHead":
        """The same head with its mac."""
        text = f"{self.epoch}\n{self.shard}\n{self.seq}\n{self.hash}\n{self.at}\n{self.installation}\n{self.database}"
        return msgspec.structs.replace(self, mac=hmac.new(key, text.encode(), hashlib.sha256).hexdigest())

    def content(self) -> bytes:
        """The head as a head file holds it."""
        return msgspec.json.encode(self) + b"\n"


def parse_head(name: str, content: bytes | None, key: bytes | None) -> SignedHead | None:
    """The head in a file's content, or none if there is no file; HistoryMismatch unless the key signed it.

    Without a key the signature is not checked.
    """
    if content is None:
        return None
    try:
        head = msgspec.json.decode(content, type=SignedHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HistoryMismatch(f"{name} is not a head file ({error})") from None
    if key is not None and not hmac.compare_digest(head.signed(key).mac.encode(), head.mac.encode()):
        raise HistoryMismatch(f"{name} was not signed with this key: the file was edited, or the key was changed")
    return head


class StateDigest:
    """SHA-256 over orders, added in the order of their ids; the same on every engine and machine."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._last = ""

    def add(self, order: Order) -> None:
        """Add the next order."""
        if order.order_id <= self._last:
            raise ValueError(f"orders must come sorted by id: {order.order_id} after {self._last}")
        self._last = order.order_id
        self._hash.update(msgspec.json.encode([_text(getattr(order, name)) for name in Order.__struct_fields__]))

    def hexdigest(self) -> str:
        """The digest of the orders so far."""
        return self._hash.hexdigest()


def _text(value: object) -> object:
    # Engines return different trailing zeros and time zones for equal values; the canonical text is the same.
    if isinstance(value, Decimal):
        return plain(value)
    return stamp(value) if isinstance(value, datetime) else value


def state_digest(orders: Iterable[Order]) -> str:
    """The digest of all orders, which must come sorted by id."""
    digest = StateDigest()
    for order in orders:
        digest.add(order)
    return digest.hexdigest()


_EPOCH_START = len('{"epoch":')


class Place(msgspec.Struct, frozen=True, tag="place"):
    """The position of a reader of the journal: the last event that it has taken; number 0 before the first."""

    epoch: int = 1
    seq: int = 0
    hash: str = GENESIS


class Offset(msgspec.Struct, frozen=True, tag="offset"):
    """The position of a reader of a partition: the number of the next message to read."""

    next: int = 0


SourcePosition = Place | Offset
"""How far a source was read. Two positions of one source are equal or different; nothing else is asked of them."""


class BusEvent(msgspec.Struct, frozen=True):
    """One event and the epoch that it belongs to."""

    epoch: int
    event: JournalEvent
    previous_seq: int | None = None
    """The number of the account's event before this one, 0 if it is the account's first.

    None from the journal itself, where the whole sequence is proven by number and hash.
    """
    traceparent: str | None = None
    """The W3C trace context of the order's request, beside the event: no hash covers it, no behaviour depends on it."""

    @property
    def place(self) -> Place:
        """The place of a reader that has taken this event."""
        return Place(self.epoch, self.event.seq, self.event.hash)


def bus_event(event: JournalEvent) -> BusEvent:
    """The event with the epoch that its text begins with."""
    return BusEvent(int(event.text[_EPOCH_START : event.text.index(",")]), event)


def check_follows(place: Place, next_event: BusEvent) -> None:
    """Raise HistoryMismatch unless the event is the next one after the place."""
    seq, event = place.seq, next_event.event
    # A new epoch starts at a higher number; every other gap is a lost event.
    is_next = event.seq == seq + 1 or (next_event.epoch > place.epoch and event.seq > seq)
    if not is_next:
        raise HistoryMismatch(f"event {event.seq} came after event {seq}: events are missing between them")
    if link(place.hash, event.text) != event.hash:
        raise HistoryMismatch(
            f"event {event.seq} does not follow event {seq} with hash {place.hash}: it is of another history"
        )
