"""Balances and positions of the books as the API shows them, and whose they are."""

from collections.abc import Callable, Iterable
from decimal import Decimal

import msgspec
from starlette.requests import Request

from switchyard.domain.accounts.views import PositionView
from switchyard.domain.books.entries import NO_CURRENCY
from switchyard.domain.books.holdings import Holding
from switchyard.domain.errors import NotFound
from switchyard.domain.ids import AccountId
from switchyard.domain.values import ZERO
from switchyard.entrypoints.http.queries import only
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.ports.books import ENTRIES_MAX, Balance

ENTRIES_PAGE_MAX = ENTRIES_MAX - 1
BALANCES_PAGE_MAX = 500

OwnAccount = Callable[[Request, tuple[str, ...]], AccountId]
"""The token's account, after the query's parameters were compared with the known ones."""


class ShownBalance(msgspec.Struct, kw_only=True):
    """The money of an account in one currency; all of it sums to zero."""

    currency: str
    cash: Decimal = ZERO
    trading: Decimal = ZERO
    fees: Decimal = ZERO
    capital: Decimal = ZERO
    adjustments: Decimal = ZERO
    conversion: Decimal = ZERO
    rounding: Decimal = ZERO


def shown_balances(rows: Iterable[Balance]) -> list[ShownBalance]:
    """One row per currency."""
    found: dict[str, ShownBalance] = {}
    for row in rows:
        setattr(found.setdefault(row.unit, ShownBalance(currency=row.unit)), row.account, row.amount)
    return list(found.values())


def shown_position(holding: Holding) -> PositionView:
    """A position as the gateway shows it."""
    return PositionView(
        symbol=holding.symbol,
        qty=holding.qty,
        average_price=holding.average_price,
        cost_basis=holding.cost_basis,
        realised_pnl=holding.realised_pnl,
        currency=None if holding.currency == NO_CURRENCY else holding.currency,
        updated_at=holding.updated_at,
    )


def own_account(tokens: TokenVerifier) -> OwnAccount:
    """Reads the token's account; another one in the query is not found."""

    def read(request: Request, known: tuple[str, ...]) -> AccountId:
        account = tokens.verify(authorization_header(request.scope))
        only(request.query_params, known)
        if request.query_params.get("accountId", account) != account:
            raise NotFound
        return account

    return read
