"""Journal lines: the one decoder of a line's text, its members and its data.

Streams, `/do/order`, the audit file, verification and replay all decode through this module. Pure: it reads and writes
nothing and calls only msgspec and hashlib.
"""

import hashlib
from datetime import datetime

import msgspec

from switchyard.domain.chain import head_text, stamp
from switchyard.domain.events import NEW_ORDER_EVENTS, ORDER_EVENTS, Event, JournalEvent, members_text
from switchyard.domain.facts import (
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
from switchyard.domain.ids import AccountId, OrderId

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
_accepted_fact = msgspec.json.Decoder(AcceptedFact)
_rejected_fact = msgspec.json.Decoder(RejectedFact)
_order_fact = msgspec.json.Decoder(OrderFact)
_report_fact = msgspec.json.Decoder(ReportFact)
_revision_fact = msgspec.json.Decoder(RevisionFact)
_epoch_fact = msgspec.json.Decoder(EpochFact)
_result_fact = msgspec.json.Decoder(ResultFact)
_set_aside_fact = msgspec.json.Decoder(SetAsideFact)
_kill_fact = msgspec.json.Decoder(KillFact)
_kill_cleared_fact = msgspec.json.Decoder(KillClearedFact)


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


def decode_accepted_fact(data: msgspec.Raw) -> AcceptedFact:
    """The data of `OrderAccepted`."""
    return _accepted_fact.decode(data)


def decode_rejected_fact(data: msgspec.Raw) -> RejectedFact:
    """The data of `RiskRejected`."""
    return _rejected_fact.decode(data)


def decode_order_fact(data: msgspec.Raw) -> OrderFact:
    """The data of an event that changed an order after its acceptance."""
    return _order_fact.decode(data)


def decode_report_fact(data: msgspec.Raw) -> ReportFact:
    """The data of `ExecutionReport` and `ReportUnmatched`, and the report of an `ExecutionRevised`."""
    return _report_fact.decode(data)


def decode_revision_fact(data: msgspec.Raw) -> RevisionFact:
    """The data of `ExecutionRevised`."""
    return _revision_fact.decode(data)


def decode_epoch_fact(data: msgspec.Raw) -> EpochFact:
    """The data of `EpochOpened`."""
    return _epoch_fact.decode(data)


def decode_result_fact(data: msgspec.Raw) -> ResultFact:
    """The data of `ResultRecorded`."""
    return _result_fact.decode(data)


def decode_set_aside_fact(data: msgspec.Raw) -> SetAsideFact:
    """The data of `ReportSetAside`."""
    return _set_aside_fact.decode(data)


def decode_kill_fact(data: msgspec.Raw) -> KillFact:
    """The data of `KillSwitchSet`."""
    return _kill_fact.decode(data)


def decode_kill_cleared_fact(data: msgspec.Raw) -> KillClearedFact:
    """The data of `KillSwitchCleared`."""
    return _kill_cleared_fact.decode(data)
