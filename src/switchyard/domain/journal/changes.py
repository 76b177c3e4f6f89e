"""A change: events and the rows they make, committed together or not at all, and the outcome of a commit."""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.events import Event, EventType
from switchyard.domain.orders.keys import KeyEntry, KeyResult
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxKey, OutboxKind, OutboxRow
from switchyard.domain.risk.claims import Breach, Claim
from switchyard.domain.risk.kills import Kill, KillOrder

# The events that may create a row of each kind.
_CREATING: Final[Mapping[OutboxKind, frozenset[EventType]]] = MappingProxyType(
    {
        "new": frozenset({"OrderAccepted"}),
        "cancel": frozenset({"CancelRequested"}),
        "amend": frozenset({"AmendRequested", "Amended", "AmendRefused"}),
    }
)
_Row = TypeVar("_Row", Order, OutboxRow, Position)

# The primary keys of rows; read for every row of every commit, where a property would be one more call.
ORDER_KEY: Final[Callable[[Order], OrderId]] = attrgetter("order_id")
OUTBOX_KEY: Final[Callable[[OutboxRow], OutboxKey]] = attrgetter("order_id", "kind", "number")
POSITION_KEY: Final[Callable[[Position], PositionKey]] = attrgetter("account_id", "symbol")


class Execution(msgspec.Struct, frozen=True):
    """A report that was recorded; (venue, execution id) is unique.

    A report on an order that is not in this database has the order id "" and the client order id that the venue gave.
    After an older database was restored, a repeated key may create the order again; the report is then applied to it,
    and to no other order, even if the venue uses the execution id again.
    """

    venue: VenueName
    exec_id: str
    order_id: OrderId
    stray_client_order_id: VenueClientOrderId | None = None

    def may_replace(self, earlier: "Execution | None", client_order_ids: Container[VenueClientOrderId | None]) -> bool:
        """Whether this execution may be written where `earlier` has the same venue and id.

        `client_order_ids` are those of this execution's order and of its amends; none for a stray.
        """
        if earlier is None:
            return True
        return earlier.order_id == "" and earlier.stray_client_order_id in client_order_ids


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a reader in the journal or in a venue's reports."""

    name: str
    epoch: int
    seq: int
    hash: str


_Value = TypeVar("_Value")


class _computed_once(Generic[_Value]):  # noqa: N801 (a decorator, as `property` is)
    """A property that is computed at its first use.

    `functools.cached_property` takes a lock for that in Python 3.11, which costs more than most of these values.
    """

    def __init__(self, compute: "Callable[[Change], _Value]") -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, change: "Change", owner: type) -> _Value:
        value = self._compute(change)
        change.__dict__[self._name] = value
        return value


class Change(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The rows and events of one decision, or of several that build on each other.

    The rows carry their expectations: an order, an outbox row, a position and a key entry of version n need version n-1
    in the database (or no row, for n = 1), and an execution must be new. Otherwise the whole change is rejected, and
    its caller reloads and decides again. An order, an outbox row and a position may come several times, each one the
    successor of the one before: the first gives the expected version, the last is written. A key's result expects
    nothing: it is left out where the key is gone or belongs to another order by now. See also `unqueued_rows`.
    """

    events: tuple[Event, ...] = ()
    orders: tuple[Order, ...] = ()
    keys: tuple[KeyEntry, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    positions: tuple[Position, ...] = ()
    executions: tuple[Execution, ...] = ()
    cursors: tuple[Cursor, ...] = ()
    results: tuple[KeyResult, ...] = ()
    kills: tuple[Kill, ...] = ()
    """A change with a kill is appended alone; the append adds the open orders that a new kill covers."""
    kill_orders: tuple[KillOrder, ...] = ()
    """Only for a rebuild, which knows them from the events."""
    claims: tuple[Claim, ...] = ()
    """The limits that accepted orders of this change have to keep; checked after all versions."""

    def orders_to_place(self) -> list[Order]:
        """The orders that the change accepts, amends, gives to another venue or begins to send.

        An active kill that covers one rejects the change. One that covers a rerouted order at the venue that it leaves
        does so too (`rerouted_ids`): the order was covered when the kill was set.
        """
        sending = {
            row.order_id
            for base, row in self.outbox_updates
            if row.kind != "cancel"
            and (row.status == "sending" or (row.kind == "amend" and not base and row.status != "sent"))
        }
        begun = sending | self.rerouted_ids()
        return [
            order
            for base, order in self.order_updates
            if order.order_id in begun or (not base and order.status != "REJECTED")
        ]

    def rerouted_ids(self) -> set[OrderId]:
        """The orders that the change gives to another venue, and that are to be sent there.

        One that is found at another venue after a restore is there already.
        """
        rerouted = {event.order_id for event in self.events if event.type == "OrderRerouted"}
        if not rerouted:
            return set()
        updated = [order for _, order in self.order_updates if order.order_id in rerouted]
        return {order.order_id for order in updated if order.status in ("ACCEPTED", "SENDING")}

    @_computed_once
    def order_updates(self) -> list[tuple[int, Order]]:
        """For each order the version expected in the database, and the row to write."""
        return _updates(self.orders, ORDER_KEY)

    @_computed_once
    def outbox_updates(self) -> list[tuple[int, OutboxRow]]:
        """For each outbox row the version expected in the database, and the row to write."""
        return _updates(self.outbox, OUTBOX_KEY)

    @_computed_once
    def position_updates(self) -> list[tuple[int, Position]]:
        """For each position the version expected in the database, and the row to write."""
        return _updates(self.positions, POSITION_KEY)

    def unqueued_rows(self) -> list[OutboxRow]:
        """The new rows that were never queued: their first attempt begins in the commit that accepts the order.

        They conflict where their lane has a queue, or where a venue has reported on the order before.
        """
        return [row for base, row in self.outbox_updates if is_unqueued(base, row)]

    def event_place(self, row: OutboxRow) -> int:
        """The place among the events of the one that created an outbox row; 0 for a change without events.

        A cancel or an amend may follow an event that has none, such as the doubt of its order.
        """
        for place, event in enumerate(self.events):
            if event.order_id == row.order_id and event.type in _CREATING[row.kind]:
                return place
        return 0


def is_unqueued(base: int, row: OutboxRow) -> bool:
    """Whether a row that expects this version is new and was never queued."""
    return not base and row.status == "sending"


def _updates(rows: Sequence[_Row], key: Callable[[_Row], Hashable]) -> list[tuple[int, _Row]]:
    if len(rows) < 2:
        return [(row.version - 1, row) for row in rows]
    updates: dict[Hashable, tuple[int, _Row]] = {}
    for row in rows:
        name = key(row)
        updates[name] = (updates[name][0] if name in updates else row.version - 1, row)
    return list(updates.values())


def merged(changes: Sequence[Change]) -> Change:
    """Several decisions as one change, in the order in which they build on each other."""
    if len(changes) == 1:
        return changes[0]
    parts: dict[str, tuple[Any, ...]] = {}
    for change in changes:
        for name in Change.__struct_fields__:
            if rows := getattr(change, name):
                parts[name] = parts[name] + rows if name in parts else rows
    whole = Change(**parts)
    if len(whole.results) < 2:
        return whole
    # An order that a late report changes once more after its end gives its key a result twice: the last one counts.
    results = {(result.account_id, result.operation, result.idempotency_key): result for result in whole.results}
    return msgspec.structs.replace(whole, results=tuple(results.values()))


class Committed(msgspec.Struct, frozen=True):
    """The change is in the journal, its events numbered from `first_seq` on (0 when it had none)."""

    first_seq: int


class Conflict(msgspec.Struct, frozen=True):
    """Nothing of the change was written.

    A row has a newer version, `key` already holds the idempotency key, `kill` covers an order that the change accepts
    or begins to send, or is the active kill that the same request has set, or the change would breach a limit that it
    claims to keep.
    """

    key: KeyEntry | None = None
    kill: Kill | None = None
    breach: Breach | None = None

    @property
    def is_of_rows(self) -> bool:
        """Whether it is about the rows alone: not about a key, a kill or a limit."""
        return self.key is None and self.kill is None and self.breach is None


Outcome = Committed | Conflict


def check_kills_alone(changes: Sequence[Change]) -> None:
    """Raise GroupRejected where a kill shares a group: the other changes would be judged without it."""
    if len(changes) > 1 and any(change.kills for change in changes):
        raise GroupRejected("a kill must be appended alone")
