"""A change: events and the rows they make, committed together or not at all."""

from collections.abc import Sequence
from itertools import chain

import msgspec

from switchyard.domain.events import Event
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.positions import Position, PositionKey


class Execution(msgspec.Struct, frozen=True):
    """A report that was taken in; there is never a second one with the same venue and id.

    One on an order that nobody knew is filed under no order and the id that the venue gave; the order may turn up
    later, when its key is repeated after an older database was restored, and then the report may be applied to it.
    """

    venue: VenueName
    exec_id: str
    order_id: OrderId
    stray_client_order_id: VenueClientOrderId | None = None

    def may_replace(self, earlier: "Execution | None") -> bool:
        """Whether it may be taken in, given what there is under the same id."""
        return earlier is None or (earlier.order_id == "" and self.order_id != "")


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a reader has come."""

    name: str
    epoch: int
    seq: int
    hash: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one decision wants written.

    The rows carry what they expect: an order, an outbox row and a key store entry of version n
    need n-1 (or nothing, for the first) in the database, and an execution must be new. Otherwise the whole
    change is rejected and its caller decides again. A position may come several times, each one the successor of the
    one before: the first says what is expected, the last is what is written.
    """

    events: tuple[Event, ...] = ()
    orders: tuple[Order, ...] = ()
    keys: tuple[KeyEntry, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    positions: tuple[Position, ...] = ()
    executions: tuple[Execution, ...] = ()
    cursors: tuple[Cursor, ...] = ()

    def position_moves(self) -> list[tuple[int, Position]]:
        """For each position the version that it must have in the database, and the row to write."""
        first: dict[PositionKey, int] = {}
        last: dict[PositionKey, Position] = {}
        for position in self.positions:
            first.setdefault(position.key, position.version - 1)
            last[position.key] = position
        return [(first[key], position) for key, position in last.items()]


def merged(changes: Sequence[Change]) -> Change:
    """Several decisions as one change; an order may be in one of them only."""
    parts = Change.__struct_fields__
    return Change(**{part: tuple(chain.from_iterable(getattr(one, part) for one in changes)) for part in parts})


class Committed(msgspec.Struct, frozen=True):
    """The change is in the journal, its events numbered from `first_seq` on (0 when it had none)."""

    first_seq: int


class Conflict(msgspec.Struct, frozen=True):
    """Nothing of the change was written: a row had moved on, or the key was taken (by `key`)."""

    key: KeyEntry | None = None


Outcome = Committed | Conflict
