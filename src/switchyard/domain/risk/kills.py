"""Kills: what a kill covers, and how kills follow from the journal's events. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from switchyard.domain.ids import AccountId, KillId, OrderId, VenueName
from switchyard.domain.orders.lifecycle import Status, is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import SETTLED, OrderState

KillMode = Literal[
    "block",  # no new order is accepted
    "reduce_only",  # meant to let through what a venue enforces as reduce-only; at present nothing passes
]
KillReason = Literal["KILL_SWITCH", "REDUCE_ONLY"]
OrderFate = Literal[
    "CANCELED",  # ended, and nothing of it is left at the venue; what was filled before counts
    "TOO_LATE",  # filled completely before a cancel could take effect
    "UNKNOWN",  # in doubt: the venue may or may not have it
    "NOT_CANCELLABLE",  # the venue rejected the cancel, and the order is still open
    "PENDING",  # not known yet
]

# Every accept and every claim is compared with all active kills, so their number is bounded: this many of people, and
# as many of programs. They are counted apart, so that neither takes the room of the other.
ACTIVE_KILLS_MAX: Final = 1_000
AUTOMATIC_KILLS_MAX: Final = 1_000
# Beyond this many of all accounts a program stops the whole account: the other half is for accounts that come later.
AUTOMATIC_STRATEGY_KILLS_MAX: Final = 500
# Beyond this many of one account too: an account that chooses new labels must not use up the room of other accounts.
AUTOMATIC_ACCOUNT_KILLS_MAX: Final = 50

# The programs that set kills in their own name; no person can use these names.
PDCA: Final = "pdca"
REPEATED_EXECUTIONS: Final = "switchyard repeated executions"
SENT_IDS: Final = "switchyard sent ids"
PROGRAMS: Final = frozenset({PDCA, REPEATED_EXECUTIONS, SENT_IDS})


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A kill: it covers the orders that agree with every part of its scope; with an empty scope it covers all."""

    kill_id: KillId
    account_id: AccountId | None = None
    strategy: str | None = None
    venue: VenueName | None = None
    symbol: str | None = None
    mode: KillMode = "block"
    set_by: str
    set_reason: str
    set_at: datetime
    version: int
    cleared_by: str | None = None
    cleared_reason: str | None = None
    cleared_at: datetime | None = None
    seq: int = 0
    """The journal number of its `KillSwitchSet`, assigned by the append: after it no covered attempt begins."""

    @property
    def is_active(self) -> bool:
        """Whether it still blocks."""
        return self.cleared_at is None

    @property
    def is_automatic(self) -> bool:
        """Whether a program has set it."""
        return self.set_by in PROGRAMS

    @property
    def block_reason(self) -> KillReason:
        """The reason code of an order that it blocks."""
        return "KILL_SWITCH" if self.mode == "block" else "REDUCE_ONLY"

    @property
    def intent(self) -> tuple[object, ...]:
        """What makes two requests the same: scope, mode, person and reason. Only one of them is active."""
        return self.account_id, self.strategy, self.venue, self.symbol, self.mode, self.set_by, self.set_reason

    def covers(self, order: Order) -> bool:
        """Whether the order agrees with every part of the scope."""
        return self.covers_scope(order.account_id, order.strategy, order.venue, order.symbol)

    def covers_scope(
        self, account: AccountId | None, strategy: str | None, venue: VenueName | None, symbol: str | None
    ) -> bool:
        """Whether all orders with these values are covered; none stands for any value."""
        return (
            (self.account_id is None or self.account_id == account)
            and (self.strategy is None or self.strategy == strategy)
            and (self.venue is None or self.venue == venue)
            and (self.symbol is None or self.symbol == symbol)
        )

    @property
    def described_scope(self) -> str:
        """The scope in words."""
        parts = {"account": self.account_id, "strategy": self.strategy, "venue": self.venue, "symbol": self.symbol}
        named = [f"{name} {value}" for name, value in parts.items() if value is not None]
        return ", ".join(named) or "everything"


class KillOrder(msgspec.Struct, frozen=True):
    """An order that was open, and covered, when the kill was set."""

    kill_id: KillId
    order_id: OrderId


def covering(kills: Iterable[Kill], order: Order) -> Kill | None:
    """The oldest active kill that covers the order."""
    found = [kill for kill in kills if kill.is_active and kill.covers(order)]
    return min(found, key=lambda kill: kill.seq) if found else None


def was_tried(state: OrderState, kill: Kill) -> bool:
    """Whether a cancel of the order was requested since the kill was set."""
    return any(row.kind == "cancel" and row.created_at >= kill.set_at for row in state.outbox)


def active_twin(kills: Iterable[Kill], new: Kill) -> Kill | None:
    """The active kill that the same request has set; none for a later version of a kill."""
    if new.version > 1:
        return None
    return next((kill for kill in kills if kill.is_active and kill.intent == new.intent), None)


def fate_of(state: OrderState, kill: Kill) -> OrderFate:
    """What became of an order that the kill has to end."""
    order = state.order
    if order.status == "FILLED":
        return "TOO_LATE"
    if is_final(order.status):
        return "CANCELED"
    if order.status == "UNKNOWN":
        return "UNKNOWN"
    is_under_way = order.status in ("SENDING", "CANCEL_REQUESTED") or any(
        row.kind == "cancel" and row.status not in SETTLED for row in state.outbox
    )
    return "NOT_CANCELLABLE" if not is_under_way and was_tried(state, kill) else "PENDING"


def is_in_flight(state: OrderState) -> bool:
    """Whether an attempt to send the order itself has begun and has no outcome yet."""
    return any(row.kind == "new" and row.status == "sending" for row in state.outbox)


class ScopeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be stopped, and why: everything, or the orders that agree with all of the named values."""

    reason: str
    everything: bool = False
    account: AccountId | None = None
    strategy: str | None = None
    venue: VenueName | None = None
    symbol: str | None = None
    mode: KillMode = "block"


class ClearRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a kill is cleared."""

    reason: str


class KilledOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An order that was open when the kill was set."""

    order_id: OrderId
    account_id: AccountId
    symbol: str
    venue: VenueName
    status: Status
    fate: OrderFate


class KillView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A kill as people see it."""

    kill_id: KillId
    active: bool
    everything: bool
    account: AccountId | None
    strategy: str | None
    venue: VenueName | None
    symbol: str | None
    mode: KillMode
    by: str
    reason: str
    set_at: datetime
    position: int
    """The journal position of the kill: after it no covered order is accepted, and no attempt to send one begins."""
    cleared_by: str | None
    cleared_reason: str | None
    cleared_at: datetime | None


class KillState(KillView, frozen=True, kw_only=True, rename="camel"):
    """A kill and what became of the orders that were open when it was set."""

    in_flight: tuple[OrderId, ...]
    """Orders with an attempt that began before the kill and has no outcome yet."""
    drained: bool
    """Whether all orders are proven ended and none is in flight."""
    counts: Mapping[OrderFate, int]
    orders: tuple[KilledOrder, ...]
    next_cursor: OrderId | None
    """The `cursor` of the next page of `orders`; none on the last page."""


def view_of(kill: Kill) -> KillView:
    """The kill as people see it."""
    return KillView(
        kill_id=kill.kill_id,
        active=kill.is_active,
        everything=kill.described_scope == "everything",
        account=kill.account_id,
        strategy=kill.strategy,
        venue=kill.venue,
        symbol=kill.symbol,
        mode=kill.mode,
        by=kill.set_by,
        reason=kill.set_reason,
        set_at=kill.set_at,
        position=kill.seq,
        cleared_by=kill.cleared_by,
        cleared_reason=kill.cleared_reason,
        cleared_at=kill.cleared_at,
    )
