"""Compares an account's orders and positions at the gateway with its folded entries. Reads only."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.reconcile.breaks import Difference, break_id
from switchyard.domain.reconcile.matching import BookedFills, compare_positions, order_difference, unexplained
from switchyard.domain.values import EXACT, ZERO
from switchyard.flow.reconcile.ledger_fold import AccountFold, readable, units_of
from switchyard.flow.reconcile.orphans import Orphans
from switchyard.ports.books import EntryFilter, Ledger
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Accounts, Queries, UnfinishedFilter

PAGE: Final = 500

FillsByOrder = Mapping[OrderId, list[tuple[Difference, bool]]]
"""The differences of an order's fills at its venue, with whether the gateway has recorded the fill."""


class GatewaySide:
    """Orders and positions of accounts, as the gateway has them."""

    def __init__(self, *, journal: Journal, queries: Queries, accounts: Accounts, ledger: Ledger, clock: Clock) -> None:
        self._journal = journal
        self._queries = queries
        self._accounts = accounts
        self._ledger = ledger
        self._clock = clock

    async def compare(
        self, fold: AccountFold, quiet_since: datetime, fills: FillsByOrder, orphans: Orphans
    ) -> tuple[list[Difference], set[str]]:
        """The differences of an account that was folded to its end, and the ids of what was active just now.

        Orders that agree and have ended are dropped from the fold: their next entry brings them back.
        """
        orders, left = await self._orders(fold, quiet_since)
        lost = orphans.order_ids(fold.account)
        orders = [one for one in orders if one.order_id not in lost]
        shown = [one for order in orders if (one := unexplained(order, fills.get(OrderId(order.subject[0]), ())))]
        positions, active = await self._positions(fold, quiet_since, orders, orphans)
        return shown + positions, left | active

    async def drop_agreeing(self, fold: AccountFold) -> None:
        """Drop the orders that agree and have ended from a fold that grows."""
        await self._compare_orders(fold, list(fold.orders), self._clock.now())

    async def last_seq(self, account: AccountId) -> int:
        """The number of the account's last event."""
        events = await self._queries.last_events(account_id=account, limit=1)
        return events[-1].seq if events else 0

    async def _orders(self, fold: AccountFold, quiet_since: datetime) -> tuple[list[Difference], set[str]]:
        await self._add_unfinished(fold)
        return await self._compare_orders(fold, list(fold.orders), quiet_since)

    async def _compare_orders(
        self, fold: AccountFold, ids: list[OrderId], quiet_since: datetime
    ) -> tuple[list[Difference], set[str]]:
        found: list[Difference] = []
        left: set[str] = set()
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            states = await self._journal.load(page)
            for order_id in page:
                state = states.get(order_id)
                order = None if state is None else state.order
                booked = fold.orders[order_id]
                if booked is None:
                    booked = fold.orders[order_id] = await self._booked(fold.account, order_id)
                one = order_difference(order_id, fold.account, order, booked)
                if order is not None and order.updated_at > quiet_since:
                    left.add(break_id("order", (order_id,)))
                elif one is not None:
                    found.append(one)
                elif order is not None and is_final(order.status):
                    del fold.orders[order_id]
        return found, left

    async def _add_unfinished(self, fold: AccountFold) -> None:
        """Expect entries of the orders that the gateway has open."""
        after: OrderId | None = None
        while page := await self._accounts.unfinished_orders(
            UnfinishedFilter(account_id=fold.account, after=after, limit=PAGE)
        ):
            for order in page:
                fold.orders.setdefault(order.order_id, None)
            after = page[-1].order_id

    async def _booked(self, account: AccountId, order_id: OrderId) -> BookedFills | None:
        """What the ledger has of an order, read whole."""
        booked: BookedFills | None = None
        after = 0
        while stored := await self._ledger.entries(EntryFilter(account_id=account, order_id=order_id, after=after)):
            for one in stored:
                entry = readable(one)
                if entry is None:
                    continue
                booked = booked or BookedFills(entry.symbol)
                booked.has_memo = booked.has_memo or entry.type == "OrderAccepted"
                booked.units = EXACT.add(booked.units, units_of(entry))
            after = stored[-1].number
        return booked

    async def _positions(
        self, fold: AccountFold, quiet_since: datetime, orders: list[Difference], orphans: Orphans
    ) -> tuple[list[Difference], set[str]]:
        """Positions with as many fills on both sides, or without activity, are compared."""
        there: dict[str, Decimal] = {}
        left: set[str] = set()
        after = ACCOUNT_TOTAL
        while page := await self._queries.positions(fold.account, after=after, limit=PAGE):
            for position in page:
                there[position.symbol] = position.qty
                same_fills = fold.fills.get(position.symbol) == position.version
                if position.updated_at > quiet_since and not same_fills:
                    left.add(break_id("position", (fold.account, position.symbol)))
            after = page[-1].symbol
        here = dict(fold.units)
        for entry in orphans.of(fold.account):
            # The gateway does not have them either; each is a break of its own.
            here[entry.symbol] = EXACT.subtract(here.get(entry.symbol, ZERO), units_of(entry))
        found = compare_positions(fold.account, there, here, orders)
        return [one for one in found if one.break_id not in left], left
