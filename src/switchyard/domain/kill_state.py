"""Kills as people see them: requests to set and clear one, a kill, and what became of its orders."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from switchyard.domain.ids import AccountId, KillId, OrderId, VenueName
from switchyard.domain.kills import Kill, KillMode, OrderFate
from switchyard.domain.lifecycle import Status


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
