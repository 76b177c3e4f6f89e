"""The totals of all accounts in memory, for engines with one writer: it claims before the commit and notes it after."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from switchyard.domain.changes import Change
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders import Order
from switchyard.domain.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.risk.claims import Breach, Claim, claimed_by
from switchyard.domain.risk.exposure import (
    FLAT,
    NOTHING,
    AccountExposure,
    CurrencyReserve,
    SymbolExposure,
    Totals,
    breach_of,
    is_unaccepted,
    part_of,
    totals_of,
)
from switchyard.domain.risk.window import OrderWindow

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
                for base, order in change.order_updates():
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
