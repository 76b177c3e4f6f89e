"""Which orders a venue takes: its order types and times in force. Switchyard emulates none that it lacks (ADR 26)."""

from typing import Final

import msgspec

from switchyard.domain.orders import ORDER_TYPES, TIMES_IN_FORCE, Order, OrderRequest, OrderType, TimeInForce


class OrderKinds(msgspec.Struct, frozen=True, kw_only=True):
    """The order types and times in force that a venue has itself."""

    types: frozenset[OrderType] = frozenset({"LIMIT", "MARKET"})
    times_in_force: frozenset[TimeInForce] = frozenset({"IOC", "FOK", "GTC"})


ALL_KINDS: Final = OrderKinds(types=frozenset(ORDER_TYPES), times_in_force=frozenset(TIMES_IN_FORCE))


class Lacking(msgspec.Struct, frozen=True):
    """What an order needs and its venue does not have."""

    value: str
    setting: str
    """The beginning of the setting that declares it."""
    taken: tuple[str, ...]
    """The values that the venue takes."""


def lacking(kinds: OrderKinds, order: Order | OrderRequest) -> Lacking | None:
    """What the venue lacks for the order; none where it takes the order."""
    if order.type not in kinds.types:
        taken = tuple(name for name in ORDER_TYPES if name in kinds.types)
        return Lacking(f"type {order.type}", "VENUE_ORDER_TYPES_", taken)
    if order.time_in_force is not None and order.time_in_force not in kinds.times_in_force:
        allowed = tuple(name for name in TIMES_IN_FORCE if name in kinds.times_in_force)
        return Lacking(f"timeInForce {order.time_in_force}", "VENUE_TIMES_IN_FORCE_", allowed)
    return None
