"""The kill switch: which orders a kill covers, and what became of each order that was open when it was set."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from switchyard.domain.ids import AccountId, KillId, OrderId, VenueName
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import Order
from switchyard.domain.outbox import SETTLED, OrderState

KillMode = Literal[
    "block",  # no new order is accepted
    "reduce_only",  # only orders that a venue enforces as reduce-only; at present none is known to be such an order
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
