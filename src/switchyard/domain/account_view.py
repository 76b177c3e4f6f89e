"""An account's positions, and the account as a whole, as `GET /positions` and `GET /account` show them. Pure."""

from datetime import datetime
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.money import ROUNDED, canonical
from switchyard.domain.orders import OrderSnapshot
from switchyard.domain.positions import Position
from switchyard.domain.risk.exposure_view import ExposureView

POSITIONS_PAGE_MAX = 500
# Orders and positions in the answer of `GET /account`; more are in `GET /orders` and `GET /positions`.
ACCOUNT_ORDERS_MAX = 100
ACCOUNT_POSITIONS_MAX = 100


class PositionView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A position at average cost; money is in the settlement currency, with the multiplier applied."""

    symbol: str
    qty: Decimal
    """Above zero when long, below when short."""
    average_price: Decimal | None
    """Null when flat."""
    cost_basis: Decimal
    """The cost of the open quantity, with the sign of the quantity."""
    realised_pnl: Decimal
    """Since the first fill in the symbol, without fees."""
    currency: str | None
    """Null for an instrument without a settlement currency."""
    updated_at: datetime
    """The time of the last fill."""


class PositionPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `GET /positions`."""

    account_id: AccountId
    positions: tuple[PositionView, ...]
    next_cursor: str | None


class AccountView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `GET /account`: what the account has open, what that reserves, and its limits."""

    account_id: AccountId
    positions: tuple[PositionView, ...]
    """The open ones, sorted by symbol."""
    has_more_positions: bool
    orders: tuple[OrderSnapshot, ...]
    """Those that have not ended, the oldest first."""
    has_more_orders: bool
    exposure: ExposureView


def position_view(position: Position) -> PositionView:
    """The position as clients see it."""
    return PositionView(
        symbol=position.symbol,
        qty=position.qty,
        average_price=position.average_price,
        cost_basis=_money(position.cost_basis, position),
        realised_pnl=_money(position.realised_pnl, position),
        currency=position.currency,
        updated_at=position.updated_at,
    )


def _money(amount: Decimal, position: Position) -> Decimal:
    return canonical(ROUNDED.multiply(amount, position.multiplier))
