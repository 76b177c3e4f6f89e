"""The totals of open orders and positions that limits are checked against, and the check of one claim. Pure.

PostgreSQL keeps the same totals in the table `exposures` and makes the same check in the function
`breached_claims`.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from functools import partial

import msgspec

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.claims import (
    SUMS,
    Breach,
    Claim,
    OrderWindow,
    Reserved,
    added_by,
    claimed_by,
    is_reducing,
    reserved,
    worst_position,
)
from switchyard.domain.values import ZERO, canonical

TotalsKey = tuple[AccountId, str, str]
"""Account, symbol and settlement currency ("" where the instrument has none)."""


class Totals(msgspec.Struct, frozen=True, gc=False):
    """What the open orders of one account, symbol and settlement currency reserve."""

    open_orders: int = 0
    buy_qty: Decimal = ZERO
    sell_qty: Decimal = ZERO
    notional: Decimal = ZERO
    reducing_buy_qty: Decimal = ZERO
    """The part that belongs to orders which were reducing when they were accepted."""
    reducing_sell_qty: Decimal = ZERO
    reducing_buys: Decimal = ZERO
    """The same part of the notional."""
    reducing_sells: Decimal = ZERO

    def plus(self, other: "Totals", sign: int = 1) -> "Totals":
        """The sum of both; the difference where the sign is -1."""
        add: Callable[[Decimal, Decimal], Decimal] = SUMS.add if sign > 0 else SUMS.subtract
        open_orders = self.open_orders + sign * other.open_orders
        buys = add(self.buy_qty, other.buy_qty) if other.buy_qty else self.buy_qty
        sells = add(self.sell_qty, other.sell_qty) if other.sell_qty else self.sell_qty
        notional = add(self.notional, other.notional)
        if not other.has_reducing:
            kept = (self.reducing_buy_qty, self.reducing_sell_qty, self.reducing_buys, self.reducing_sells)
            return Totals(open_orders, buys, sells, notional, *kept)
        return Totals(
            open_orders,
            buys,
            sells,
            notional,
            add(self.reducing_buy_qty, other.reducing_buy_qty),
            add(self.reducing_sell_qty, other.reducing_sell_qty),
            add(self.reducing_buys, other.reducing_buys),
            add(self.reducing_sells, other.reducing_sells),
        )

    def canonical(self) -> "Totals":
        """The same amounts in canonical form."""
        _, *amounts = msgspec.structs.astuple(self)
        return Totals(self.open_orders, *map(canonical, amounts))

    @property
    def has_reducing(self) -> bool:
        """Whether a part belongs to reducing orders."""
        return bool(self.reducing_buy_qty or self.reducing_sell_qty or self.reducing_buys or self.reducing_sells)

    @property
    def reducing_notional(self) -> Decimal:
        """The part of the notional that belongs to reducing orders."""
        return SUMS.add(self.reducing_buys, self.reducing_sells)


NOTHING = Totals()

# Results of earlier trading days than these are not looked at: one for each currency and day.
_DAYS_MAX = 64


class CurrencyReserve(msgspec.Struct, frozen=True):
    """What open orders of several accounts reserve in one settlement currency."""

    orders: int
    notional: Decimal


class SymbolExposure(msgspec.Struct, frozen=True):
    """An account in a symbol: its position and what may still be bought and sold."""

    position: Decimal = ZERO
    buy_qty: Decimal = ZERO
    sell_qty: Decimal = ZERO

    def reduces(self, order: Order) -> bool:
        """Whether a new order would be reducing."""
        open_qty = self.buy_qty if order.side == "BUY" else self.sell_qty
        return is_reducing(self.position, open_qty, order.side, order.qty)


FLAT = SymbolExposure()


def is_unaccepted(order: Order) -> bool:
    """Whether the order was rejected before it was accepted: such a row is final in its first version."""
    return order.version == 1 and order.status == "REJECTED"


def totals_key(order: Order) -> TotalsKey:
    """The totals that the order belongs to."""
    return order.account_id, order.symbol, order.currency or ""


def totals_of(order: Order) -> Totals:
    """The order's part of its totals."""
    held = reserved(order)
    return NOTHING if held is None else part_of(order, held)


def part_of(order: Order, held: Reserved) -> Totals:
    """The part of its totals of an order that reserves `held`."""
    buys, sells = (held.qty, ZERO) if order.side == "BUY" else (ZERO, held.qty)
    if not order.reducing:
        return Totals(1, buys, sells, held.notional)
    amounts = (held.notional, ZERO) if order.side == "BUY" else (ZERO, held.notional)
    return Totals(1, buys, sells, held.notional, buys, sells, *amounts)


def summed(orders: Iterable[Order]) -> dict[TotalsKey, Totals]:
    """The totals of these orders, without those that are nothing."""
    sums: dict[TotalsKey, Totals] = {}
    for order in orders:
        key = totals_key(order)
        sums[key] = sums.get(key, NOTHING).plus(totals_of(order))
    return {key: totals.canonical() for key, totals in sums.items() if totals != NOTHING}


def held_cost(position: Position) -> Decimal:
    """The cost of a position in its settlement currency, whether long or short."""
    return SUMS.multiply(abs(position.cost_basis), position.multiplier)


def overhang(totals: Totals, position: Position | None, currency: str) -> Decimal:
    """What reducing orders may open by now: the position that they would reduce may have been closed by others."""
    qty = position.qty if position else ZERO
    cost = ZERO
    if position is not None and (position.currency or "") == currency:
        cost = SUMS.multiply(position.cost_basis, position.multiplier)
    worst = abs(cost)
    if totals.reducing_buy_qty > max(-qty, ZERO):
        worst = max(worst, abs(SUMS.add(cost, totals.reducing_buys)))
    if totals.reducing_sell_qty > max(qty, ZERO):
        worst = max(worst, abs(SUMS.subtract(cost, totals.reducing_sells)))
    return SUMS.subtract(worst, abs(cost))


class AccountExposure:
    """All that the limits of one account look at, with the sums over symbols and over currencies."""

    __slots__ = (
        "_currencies",
        "_days",
        "_held",
        "_open_orders",
        "_reducing",
        "_symbols",
        "positions",
        "totals",
        "window_orders",
    )

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str], Totals] = {}
        """By symbol and settlement currency."""
        self.positions: dict[str, Position] = {}
        """By symbol, flat ones included."""
        self.window_orders = 0
        """The orders since the beginning of the window that was asked for."""
        self._open_orders = 0
        self._symbols: dict[str, Totals] = {}
        """In all currencies."""
        self._currencies: dict[str, Totals] = {}
        """In all symbols."""
        self._reducing: set[tuple[str, str]] = set()
        """The totals that have reducing orders."""
        self._held: dict[str, Decimal] = {}
        """The cost of all positions by currency."""
        self._days: dict[tuple[str, date], Decimal] = {}
        """The realised result by currency and trading day."""

    def add(self, symbol: str, currency: str, part: Totals) -> None:
        """Add to the totals, also an amount below zero."""
        key = (symbol, currency)
        before = self.totals.get(key, NOTHING)
        total = before.plus(part)
        if not total.open_orders and total == NOTHING:
            self.totals.pop(key, None)
        else:
            self.totals[key] = total
        if part.has_reducing:
            (self._reducing.add if total.has_reducing else self._reducing.discard)(key)
        self._open_orders += part.open_orders
        # An account has mostly one currency in a symbol, and often one symbol in a currency: then the sum is known.
        of_symbol, of_currency = self._symbols.get(symbol, NOTHING), self._currencies.get(currency, NOTHING)
        self._symbols[symbol] = total if of_symbol is before else of_symbol.plus(part)
        self._currencies[currency] = total if of_currency is before else of_currency.plus(part)

    def put(self, position: Position) -> None:
        """Set the position in a symbol."""
        before = self.positions.get(position.symbol)
        if before is not None:
            self._count(before, -1)
        self._count(position, 1)
        self.positions[position.symbol] = position

    def copy(self) -> "AccountExposure":
        """The same totals and positions, in an object of its own."""
        copied = AccountExposure()
        for (symbol, currency), totals in self.totals.items():
            copied.add(symbol, currency, totals)
        for position in self.positions.values():
            copied.put(position)
        return copied

    def symbol(self, symbol: str) -> SymbolExposure:
        """The account in one symbol."""
        sums, held = self._symbols.get(symbol, NOTHING), self.positions.get(symbol)
        return SymbolExposure(held.qty if held else ZERO, sums.buy_qty, sums.sell_qty)

    def open_orders(self, symbol: str | None = None) -> int:
        """The open orders of the account, or of one symbol."""
        if symbol is not None:
            return self._symbols.get(symbol, NOTHING).open_orders
        return self._open_orders

    def notional(self, currency: str, symbol: str | None = None) -> Decimal:
        """What open orders reserve in a settlement currency."""
        return self.part(currency, symbol).notional

    def by_currency(self) -> dict[str, Totals]:
        """What open orders reserve, by settlement currency."""
        return self._currencies

    def gross(self, currency: str, symbol: str | None = None) -> Decimal:
        """Positions at cost plus what open orders reserve, without orders that are still reducing."""
        part = self.part(currency, symbol)
        gross = SUMS.add(part.notional, self._cost(currency, symbol))
        if not self._reducing:
            return gross
        gross = SUMS.subtract(gross, part.reducing_notional)
        for key in self._reducing:
            if key[1] == currency and symbol in (None, key[0]):
                gross = SUMS.add(gross, overhang(self.totals[key], self.positions.get(key[0]), currency))
        return gross

    def day_loss(self, currency: str, day: date) -> Decimal:
        """The realised loss of the trading day; below zero for a profit."""
        return SUMS.minus(self._days.get((currency, day), ZERO))

    def currencies(self) -> list[str]:
        """The settlement currencies of its open orders and positions, sorted."""
        held = {position.currency or "" for position in self.positions.values() if position.qty or position.day_pnl}
        return sorted({currency for _, currency in self.totals} | held)

    def part(self, currency: str, symbol: str | None = None) -> Totals:
        """What open orders reserve in a settlement currency, in all symbols or in one."""
        if symbol is None:
            return self._currencies.get(currency, NOTHING)
        return self.totals.get((symbol, currency), NOTHING)

    def _cost(self, currency: str, symbol: str | None) -> Decimal:
        if symbol is None:
            return self._held.get(currency, ZERO)
        held = self.positions.get(symbol)
        return held_cost(held) if held is not None and (held.currency or "") == currency else ZERO

    def _count(self, position: Position, sign: int) -> None:
        currency = position.currency or ""
        add: Callable[[Decimal, Decimal], Decimal] = SUMS.add if sign > 0 else SUMS.subtract
        self._held[currency] = add(self._held.get(currency, ZERO), held_cost(position))
        if position.day is None:
            return
        key = (currency, position.day)
        self._days[key] = add(self._days.get(key, ZERO), SUMS.multiply(position.day_pnl, position.multiplier))
        if len(self._days) > _DAYS_MAX:
            del self._days[min(self._days, key=lambda held: held[1])]


def breach_of(
    exposure: AccountExposure, window_orders: int, claim: Claim, order: Order, held: Reserved
) -> Breach | None:
    """The first limit that the order would breach with what it reserves.

    `window_orders` is the number of orders since `claim.since`.
    """
    symbol, added = order.symbol, added_by(claim, order, held)
    if order.reducing:
        return _not_reducing(exposure.symbol(symbol), claim, order, added.qty)
    limits, currency = claim.limits, order.currency or ""
    if limits.window_orders is not None and window_orders + 1 > limits.window_orders:
        return Breach("LIMIT_ORDERS_PER_WINDOW", Decimal(window_orders + 1), Decimal(limits.window_orders))
    if limits.daily_loss is not None and claim.day is not None:
        loss = exposure.day_loss(currency, claim.day)
        if loss >= limits.daily_loss:
            return Breach("LIMIT_DAILY_LOSS", canonical(loss), limits.daily_loss)
    for count_max, of in ((limits.open_orders, None), (limits.symbol_open_orders, symbol)):
        if count_max is not None and (count := exposure.open_orders(of) + added.orders) > count_max:
            return Breach("LIMIT_OPEN_ORDERS", Decimal(count), Decimal(count_max), of is not None)
    for amount_max, of in ((limits.open_notional, None), (limits.symbol_open_notional, symbol)):
        if amount_max is None or not (added.orders or added.notional > 0):
            continue
        if (reached := SUMS.add(exposure.notional(currency, of), added.notional)) > amount_max:
            return Breach("LIMIT_OPEN_NOTIONAL", canonical(reached), amount_max, of is not None)
    if limits.position is not None and added.qty > 0:
        worst = _worst(exposure.symbol(symbol), order, added.qty)
        if worst > limits.position:
            return Breach("LIMIT_POSITION", canonical(worst), limits.position, True)
    for amount_max, of in ((limits.gross_exposure, None), (limits.symbol_gross_exposure, symbol)):
        if amount_max is None or not (added.orders or added.gross > 0):
            continue
        if (reached := SUMS.add(exposure.gross(currency, of), added.gross)) > amount_max:
            return Breach("LIMIT_GROSS_EXPOSURE", canonical(reached), amount_max, of is not None)
    return None


def _not_reducing(here: SymbolExposure, claim: Claim, order: Order, added_qty: Decimal) -> Breach | None:
    """The breach of an order that was taken as reducing and is not, or that has to close a position and leaves some."""
    worst = _worst(here, order, added_qty)
    open_qty = here.buy_qty if order.side == "BUY" else here.sell_qty
    is_so = is_reducing(here.position, open_qty, order.side, added_qty) and not (claim.whole and worst)
    return None if is_so else Breach("NOT_REDUCING", worst, ZERO, True)


def _worst(here: SymbolExposure, order: Order, added_qty: Decimal) -> Decimal:
    """The position, long or short, that the order may lead to."""
    open_qty = here.buy_qty if order.side == "BUY" else here.sell_qty
    return abs(worst_position(here.position, open_qty, order.side, added_qty))


RecentOrders = Callable[[AccountId, OrderId], Iterable[OrderId]]
"""The accepted orders of an account from an id on."""


class Book:
    """Exact totals of the open orders; one entry per open order and one per position."""

    def __init__(self, orders: Iterable[Order], positions: Iterable[Position], recent: RecentOrders) -> None:
        self._accounts: dict[AccountId, AccountExposure] = {}
        self._parts: dict[OrderId, Totals] = {}
        self._recent = recent
        self._windows: dict[AccountId, OrderWindow] = {}
        for order in orders:
            self._set(order, totals_of(order))
        self._put(positions)

    def symbol(self, account: AccountId, symbol: str) -> SymbolExposure:
        """One account in one symbol, all zero without a position; may be called from another thread."""
        exposure = self._accounts.get(account)
        if exposure is None or (held := exposure.positions.get(symbol)) is None or not held.qty:
            return FLAT
        return exposure.symbol(symbol)

    def copy_of(self, account: AccountId, since: OrderId | None) -> AccountExposure:
        """The totals of one account as they are now, with the number of its orders from an id on."""
        copied = self._accounts[account].copy() if account in self._accounts else AccountExposure()
        copied.window_orders = 0 if since is None else len(list(self._recent(account, since)))
        return copied

    def reserved(self) -> dict[str, CurrencyReserve]:
        """What all accounts reserve, by settlement currency; may be called from another thread."""
        sums: dict[str, Totals] = {}
        for exposure in list(self._accounts.values()):
            for currency, totals in list(exposure.by_currency().items()):
                if totals.open_orders:
                    sums[currency] = sums.get(currency, NOTHING).plus(totals)
        return {currency: CurrencyReserve(totals.open_orders, totals.notional) for currency, totals in sums.items()}

    def reserve(self, change: Change) -> Breach | None:
        """Reserve what the change claims, or return the limit that it would breach; its commit must follow."""
        for claim in change.claims:
            order = claimed_order(change, claim)
            window = 0 if claim.since is None else self._window_orders(order.account_id, claim.since)
            held = claimed_by(order)
            breach = breach_of(self._account(order.account_id), window, claim, order, held)
            if breach is not None:
                if claim is not change.claims[0]:
                    self.take_back([change])
                return breach
            self._set(order, part_of(order, held))
            if claim.before is None:
                self._count(order)
        return None

    def take_back(self, changes: Sequence[Change]) -> None:
        """Undo the reservations of a group that was not committed; it must have no amend."""
        for change in changes:
            for claim in change.claims:
                assert claim.before is None, "what an order reserved before its amend is not kept"
                order = claimed_order(change, claim)
                self._set(order, NOTHING)
                self._windows.pop(order.account_id, None)  # read again

    def note(self, changes: Iterable[Change]) -> None:
        """Note the rows of a committed group."""
        for change in changes:
            if not change.claims:
                for base, order in change.order_updates:
                    self._set(order, totals_of(order))
                    if not base and not is_unaccepted(order):
                        self._count(order)
            elif len(change.orders) > 1:
                for order in change.orders:
                    self._set(order, totals_of(order))
            self._put(change.positions)

    def _account(self, account: AccountId) -> AccountExposure:
        exposure = self._accounts.get(account)
        if exposure is None:
            exposure = self._accounts[account] = AccountExposure()
        return exposure

    def _put(self, positions: Iterable[Position]) -> None:
        for position in positions:
            if position.symbol != ACCOUNT_TOTAL:
                self._account(position.account_id).put(position)

    def _set(self, order: Order, part: Totals) -> None:
        before = self._parts.get(order.order_id, NOTHING)
        if part == before:
            return
        if part is NOTHING:
            del self._parts[order.order_id]
        else:
            self._parts[order.order_id] = part
        moved = part if before is NOTHING else part.plus(before, -1)
        self._account(order.account_id).add(order.symbol, order.currency or "", moved)

    def _count(self, order: Order) -> None:
        window = self._windows.get(order.account_id)
        if window is not None:
            window.add(order.order_id)

    def _window_orders(self, account: AccountId, since: OrderId) -> int:
        window = self._windows.get(account)
        if window is None:
            window = self._windows[account] = OrderWindow(partial(self._recent, account), since)
        return window.count(since)


def claimed_order(change: Change, claim: Claim) -> Order:
    """The newest row of the order that a change claims room for."""
    if len(change.orders) == 1:
        return change.orders[0]
    return next(order for order in reversed(change.orders) if order.order_id == claim.order_id)
