"""A journal, its books and a PDCA store with the strategy that `strategies.py` works out by hand, and its workers."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path

from switchyard.adapters.backoffice.reads import SqlLedgerLookup
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.domain.accounts.positions import Position
from switchyard.domain.decisions import accept, apply_report, begin_attempt, record_doubt
from switchyard.domain.ids import AccountId, KillId, OrderId, venue_client_order_id
from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.risk.checks import Violation
from switchyard.domain.risk.claims import Terms
from switchyard.domain.risk.kills import Kill
from switchyard.domain.strategies.metrics import Fill, Minimum, StrategyOrder
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.source import JournalBus
from switchyard.flow.kill.switch import KillRequest, KillSwitch
from switchyard.flow.pdca.recheck import LedgerFills, Recheck, RecheckRules
from switchyard.flow.pdca.worker import Enforcement, RecheckWorker
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, VENUE, WORKER, an_order_id, state_after
from tests.support.databases import Database
from tests.support.memory.clock import ManualClock, SeededRandomness
from tests.support.strategies import FILLS, ORDERS, WINDOW

STRATEGY = "meanrev.m1"
ACCEPTED_AT = WINDOW.end - timedelta(microseconds=1)
LOW = Minimum(days=2, count=1)
_groups = count(1)


class RecheckSite:
    """All parts of a recheck, on one database."""

    def __init__(self, database: Database, ledger: SqliteLedger, store: SqlPdcaStore) -> None:
        self.database = database
        self.store = store
        self.metrics = Metrics()
        self.clock = ManualClock(ACCEPTED_AT)
        self.consumer = Consumer(
            JournalBus(database.journal), ledger, clock=self.clock, metrics=self.metrics.backoffice
        )
        self.ledger = ledger
        self.fills = LedgerFills(ledger, SqlLedgerLookup(ledger))
        self.switch = KillSwitch(
            journal=database.journal,
            kills=database.kills,
            commit=self.commit,
            clock=self.clock,
            randomness=SeededRandomness(),
            venues=[VENUE],
        )
        self._position: Position | None = None

    async def commit(self, change: Change) -> Outcome:
        [outcome] = await self.database.journal.append(0, f"recheck-{next(_groups)}", [change], self.clock.now())
        return outcome

    def worker(self, name: str = "worker-1", *, minimum: Minimum = LOW, parallel: int = 2) -> RecheckWorker:
        recheck = Recheck(
            journal=self.database.journal,
            queries=self.database.queries,
            orders=self.database.strategy_orders,
            fills=self.fills,
            clock=self.clock,
            rules=RecheckRules(365, minimum),
            enforce=Enforcement(self.store, self.database.kills, self._restrict),
        )
        return RecheckWorker(
            self.store, recheck, name=name, clock=self.clock, metrics=self.metrics.rechecks, parallel=parallel
        )

    async def _restrict(self, account: AccountId, strategy: str, reason: str, kill_id: KillId) -> Kill:
        request = KillRequest(account=account, strategy=strategy, mode="reduce_only", by="pdca", reason=reason)
        return await self.switch.set_by_program(request, new_id=kill_id)

    async def trade(self, strategy: str = STRATEGY) -> None:
        """Write the orders and fills of the hand-worked strategy, in the order of their times, and book them."""
        steps: list[tuple[datetime, int, StrategyOrder | Fill]] = [
            *((order.accepted_at, 0, order) for order in ORDERS),
            *((fill.at, 1, fill) for fill in FILLS),
        ]
        states: dict[str, OrderState] = {}
        by_order = {fill.order_id: fill for fill in FILLS}
        for at, _, step in sorted(steps, key=lambda each: each[:2]):
            if isinstance(step, Fill):
                await self._fill(states[step.order_id], step)
            else:
                states[step.order_id] = await self._place(step, by_order.get(step.order_id), strategy, at)
        await self.book()

    async def book(self) -> None:
        await self.consumer.open()
        while await self.consumer.run_once():
            pass

    async def reject(self, account: AccountId, count: int) -> None:
        """Write rejected orders of the account under the strategy's label, and book them."""
        order = StrategyOrder(order_id=OrderId("rejected"), accepted_at=WINDOW.end, rejected=True)
        for _ in range(count):
            await self._place(order, None, STRATEGY, WINDOW.end - timedelta(hours=1), account)
        await self.book()

    async def _place(
        self,
        order: StrategyOrder,
        fill: Fill | None,
        strategy: str,
        at: datetime,
        account: AccountId = ACCOUNT,
    ) -> OrderState:
        order_id = an_order_id(at)
        violation = None
        if order.rejected:
            violation = Violation("REDUCE_ONLY" if order.blocked else "RISK_MAX_QTY", "for the test")
        change = accept(
            OrderRequest(
                symbol="ABC",
                side="BUY" if fill is None else fill.side,
                type="LIMIT",
                qty=Decimal(1) if fill is None else fill.qty,
                price=Decimal(1) if fill is None else fill.price,
                time_in_force="GTC",
                strategy=strategy,
            ),
            account=account,
            order_id=order_id,
            venue=VENUE,
            venue_client_order_id=venue_client_order_id("test", account, "orders", None, 0, order_id),
            key=None,
            quote=order.quote if isinstance(order.quote, Quote) else None,
            now=at,
            violation=violation,
            terms=Terms(currency="USD", price=Decimal(1)),
        )
        state = await self._committed(change, None, at)
        if order.doubted:
            state = await self._committed(begin_attempt(state, state.outbox[0], WORKER, at), state, at)
            state = await self._committed(record_doubt(state, state.outbox[0], "NETWORK_TIMEOUT", None, at), state, at)
        return state

    async def _fill(self, state: OrderState, fill: Fill) -> None:
        report = ExecutionReport(
            exec_id=fill.exec_id,
            venue=VENUE,
            venue_client_order_id=state.order.venue_client_order_id,
            venue_order_id="v",
            status="FILLED",
            last_qty=fill.qty,
            last_price=fill.price,
            filled_qty_total=fill.qty,
            at=fill.at,
            fee=fill.fee,
        )
        change = apply_report(state, self._position, report, fill.at)
        self._position = next((each for each in change.positions if each.symbol == "ABC"), self._position)
        await self._committed(change, state, fill.at)

    async def _committed(self, change: Change, before: OrderState | None, at: datetime) -> OrderState:
        [outcome] = await self.database.journal.append(0, f"recheck-{next(_groups)}", [change], at)
        assert isinstance(outcome, Committed), outcome
        if before is None:
            return state_after(change)
        return OrderState(order=change.orders[0], outbox=change.outbox or before.outbox)


@asynccontextmanager
async def recheck_site(database: Database, folder: Path) -> AsyncIterator[RecheckSite]:
    """The site on a database, with new books and a new store."""
    async with AsyncExitStack() as stack:
        ledger = await SqliteLedger.open(folder / "backoffice.db")
        stack.push_async_callback(ledger.close)
        store = await SqlPdcaStore.on_file(folder / "pdca.db")
        stack.push_async_callback(store.close)
        yield RecheckSite(database, ledger, store)
