"""What an account is shown of itself: positions, results and the exposure that counts against its limits. Pure."""

from datetime import date, datetime
from decimal import Decimal

import msgspec

from switchyard.domain.accounts.positions import Position
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.risk.claims import LimitSettings
from switchyard.domain.risk.exposure import AccountExposure
from switchyard.domain.values import ROUNDED, canonical

# Symbols with open orders or a position in one answer; a desk that trades more of them asks for one symbol.
SYMBOLS_MAX = 1_000


class CurrencyExposure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sums of an account in one settlement currency; a limit that is not set is null."""

    currency: str | None
    """Null for instruments without a settlement currency."""
    open_notional: Decimal
    open_notional_max: Decimal | None
    gross_exposure: Decimal
    gross_exposure_max: Decimal | None
    daily_pnl: Decimal
    """Realised on this trading day; below zero for a loss."""
    daily_loss_max: Decimal | None


class SymbolRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An account in one symbol and settlement currency."""

    symbol: str
    currency: str | None
    position: Decimal
    position_max: Decimal | None
    open_orders: int
    open_orders_max: int | None
    open_buy_qty: Decimal
    open_sell_qty: Decimal
    open_notional: Decimal
    open_notional_max: Decimal | None
    gross_exposure: Decimal
    gross_exposure_max: Decimal | None


class ExposureView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `GET /risk/exposure`."""

    account_id: AccountId
    trading_day: date
    open_orders: int
    open_orders_max: int | None
    window_seconds: float
    window_orders: int
    window_orders_max: int | None
    currencies: tuple[CurrencyExposure, ...]
    symbols: tuple[SymbolRow, ...]
    has_more: bool
    """Whether there are more symbols than the answer shows."""


def exposure_view(
    account: AccountId, exposure: AccountExposure, settings: LimitSettings, day: date, symbol: str | None
) -> ExposureView:
    """The account's totals and limits; `symbol` selects one symbol."""
    limits = settings.limits_of(account, symbol or "")
    selected = sorted(key for key in _keys(exposure) if symbol in (None, key[0]))
    return ExposureView(
        account_id=account,
        trading_day=day,
        open_orders=exposure.open_orders(),
        open_orders_max=limits.open_orders,
        window_seconds=settings.orders_window.total_seconds(),
        window_orders=exposure.window_orders,
        window_orders_max=limits.window_orders,
        currencies=tuple(
            CurrencyExposure(
                currency=currency or None,
                open_notional=canonical(exposure.notional(currency)),
                open_notional_max=limits.open_notional,
                gross_exposure=canonical(exposure.gross(currency)),
                gross_exposure_max=limits.gross_exposure,
                daily_pnl=canonical(-exposure.day_loss(currency, day)),
                daily_loss_max=limits.daily_loss,
            )
            for currency in exposure.currencies()
        ),
        symbols=tuple(_row(account, exposure, settings, *key) for key in selected[:SYMBOLS_MAX]),
        has_more=len(selected) > SYMBOLS_MAX,
    )


def _keys(exposure: AccountExposure) -> set[tuple[str, str]]:
    """Symbols and currencies with open orders or a position."""
    held = {(symbol, held.currency or "") for symbol, held in exposure.positions.items() if held.qty}
    return held | {key for key, totals in exposure.totals.items() if totals.open_orders}


def _row(
    account: AccountId, exposure: AccountExposure, settings: LimitSettings, symbol: str, currency: str
) -> SymbolRow:
    limits, totals = settings.limits_of(account, symbol), exposure.part(currency, symbol)
    return SymbolRow(
        symbol=symbol,
        currency=currency or None,
        position=canonical(exposure.symbol(symbol).position),
        position_max=limits.position,
        open_orders=totals.open_orders,
        open_orders_max=limits.symbol_open_orders,
        open_buy_qty=canonical(totals.buy_qty),
        open_sell_qty=canonical(totals.sell_qty),
        open_notional=canonical(totals.notional),
        open_notional_max=limits.symbol_open_notional,
        gross_exposure=canonical(exposure.gross(currency, symbol)),
        gross_exposure_max=limits.symbol_gross_exposure,
    )


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
