"""The claims of a group as the server-side function `breached_claims` reads them, and what it returns."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import TypeVar

import msgspec
from msgspec.structs import astuple

from switchyard.domain.changes import Change
from switchyard.domain.ids import OrderId
from switchyard.domain.money import ZERO
from switchyard.domain.orders import Order
from switchyard.domain.risk.book import claimed_order
from switchyard.domain.risk.claims import NO_LIMITS, Added, Breach, BreachCode, Claim, Limits, added_by
from switchyard.domain.risk.reservations import SUMS

_encoder = msgspec.json.Encoder()  # decimals as strings, as `json_to_recordset` reads them
_breaches = msgspec.json.Decoder(dict[int, tuple[BreachCode, Decimal, Decimal, bool]])
_Bound = TypeVar("_Bound", int, Decimal)


class _Line(msgspec.Struct, omit_defaults=True):
    """An account, symbol and currency: what all claims of the group add, and their strictest limits."""

    line: int
    account_id: str
    symbol: str
    currency: str
    buys: Decimal = ZERO
    sells: Decimal = ZERO
    orders: int = 0
    notional: Decimal = ZERO
    gross: Decimal = ZERO
    reducing_buys: bool = False
    """Whether a BUY of the group was taken as reducing."""
    reducing_sells: bool = False
    orders_max: int | None = None
    notional_max: Decimal | None = None
    position_max: Decimal | None = None
    gross_max: Decimal | None = None

    def add(self, order: Order, added: Added) -> None:
        # What an amend takes from a total makes no room here: the claims before it must fit without it.
        qty = max(added.qty, ZERO)
        if order.side == "BUY":
            self.buys = SUMS.add(self.buys, qty)
            self.reducing_buys = self.reducing_buys or order.reducing
        else:
            self.sells = SUMS.add(self.sells, qty)
            self.reducing_sells = self.reducing_sells or order.reducing
        self.orders += added.orders
        self.notional = SUMS.add(self.notional, max(added.notional, ZERO))
        self.gross = SUMS.add(self.gross, max(added.gross, ZERO))

    def limit(self, limits: Limits) -> None:
        self.orders_max = _stricter(self.orders_max, limits.symbol_open_orders)
        self.notional_max = _stricter(self.notional_max, limits.symbol_open_notional)
        self.position_max = _stricter(self.position_max, limits.position)
        self.gross_max = _stricter(self.gross_max, limits.symbol_gross_exposure)


class _Owner(msgspec.Struct, omit_defaults=True):
    """An account, for the limit on the orders of its window."""

    owner: int
    account_id: str
    orders: int = 0
    since: OrderId | None = None
    window_max: int | None = None


class _Purse(msgspec.Struct, omit_defaults=True):
    """An account and currency."""

    purse: int
    account_id: str
    currency: str
    is_needed: bool = False
    """Whether a limit is on a sum over the account's symbols."""
    needs_positions: bool = False
    day: date | None = None
    orders: int = 0
    """Of the whole account."""
    notional: Decimal = ZERO
    gross: Decimal = ZERO
    orders_max: int | None = None
    notional_max: Decimal | None = None
    gross_max: Decimal | None = None
    loss_max: Decimal | None = None

    def add(self, added: Added) -> None:
        self.notional = SUMS.add(self.notional, max(added.notional, ZERO))
        self.gross = SUMS.add(self.gross, max(added.gross, ZERO))

    def limit(self, limits: Limits) -> None:
        self.orders_max = _stricter(self.orders_max, limits.open_orders)
        self.notional_max = _stricter(self.notional_max, limits.open_notional)
        self.gross_max = _stricter(self.gross_max, limits.gross_exposure)
        self.loss_max = _stricter(self.loss_max, limits.daily_loss)
        self.needs_positions = self.gross_max is not None or self.loss_max is not None
        self.is_needed = self.needs_positions or self.orders_max is not None or self.notional_max is not None


def claims_json(changes: Sequence[Change]) -> tuple[str | None, str | None]:
    """The totals that the claims of a group need, each once, and the claims; none where no change has a claim."""
    if not any(change.claims for change in changes):
        return None, None
    rows = _Rows()
    for number, change in enumerate(changes):
        for claim in change.claims:
            rows.add(number, claim, claimed_order(change, claim))
    return rows.totals(), rows.claims()


def breaches_from(text: str | None) -> dict[int, Breach]:
    """The breaches by the number of their change."""
    return {} if text is None else {number: Breach(*parts) for number, parts in _breaches.decode(text).items()}


class _Totals:
    """The totals of one account, symbol and currency, and the limits that they were last compared with."""

    __slots__ = ("limits", "line", "owner", "purse")

    def __init__(self, line: _Line, purse: _Purse, owner: _Owner) -> None:
        self.line = line
        self.purse = purse
        self.owner = owner
        self.limits = NO_LIMITS


class _Rows:
    """Numbers the totals from 1, as arrays of PostgreSQL do."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, str], _Totals] = {}
        self._purses: dict[tuple[str, str], _Purse] = {}
        self._owners: dict[str, _Owner] = {}
        self._claims: list[tuple[object, ...]] = []

    def add(self, number: int, claim: Claim, order: Order) -> None:
        """Add a claim; `order` is its order."""
        added = added_by(claim, order)
        key = (order.account_id, order.symbol, order.currency or "")
        totals = self._keys.get(key)
        if totals is None:
            totals = self._keys[key] = self._new(*key)
        line, purse, owner, limits = totals.line, totals.purse, totals.owner, claim.limits
        line.add(order, added)
        purse.add(added)
        owner.orders += added.orders
        # A reducing order has no limits; most claims of an account and symbol share one object.
        if not order.reducing and limits is not totals.limits:
            totals.limits = limits
            line.limit(limits)
            purse.limit(limits)
            owner.window_max = _stricter(owner.window_max, limits.window_orders)
        if claim.day is not None:
            purse.day = claim.day
        if claim.since is not None:
            owner.since = claim.since if owner.since is None else min(owner.since, claim.since)
        numbers = (number, line.line, purse.purse, owner.owner)
        amounts = (order.side, added.qty, added.notional, order.reducing)
        self._claims.append((*numbers, *amounts, *astuple(limits), added.orders, added.gross))

    def totals(self) -> str:
        """The totals as JSON."""
        for purse in self._purses.values():
            purse.orders = self._owners[purse.account_id].orders
        rows = {
            "lines": [totals.line for totals in self._keys.values()],
            "purses": list(self._purses.values()),
            "owners": list(self._owners.values()),
        }
        return _encoder.encode(rows).decode()

    def claims(self) -> str:
        """The claims as a JSON array of arrays."""
        return _encoder.encode(self._claims).decode()

    def _new(self, account: str, symbol: str, currency: str) -> _Totals:
        purse = self._purses.get((account, currency))
        if purse is None:
            purse = self._purses[account, currency] = _Purse(len(self._purses) + 1, account, currency)
        owner = self._owners.get(account)
        if owner is None:
            owner = self._owners[account] = _Owner(len(self._owners) + 1, account)
        return _Totals(_Line(len(self._keys) + 1, account, symbol, currency), purse, owner)


def _stricter(one: _Bound | None, other: _Bound | None) -> _Bound | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
