"""A recorder and a sweeper over a venue whose orders and reports are set by the test."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import count

from msgspec.structs import replace

from switchyard.adapters.memory.venue import NullVenue
from switchyard.adapters.venues.paper.book import cursor_text, number_of
from switchyard.domain.decisions import begin_attempt, record_sent
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import MayBeLost, OrderState, never_lost
from switchyard.domain.orders.reports import ExecutionIdScope, ExecutionReport, ReportStatus
from switchyard.domain.values import ZERO
from switchyard.flow.executions.record import Recorder
from switchyard.flow.executions.sync import GRACE, Sweeper
from switchyard.flow.lost_history import LostAmends
from switchyard.ports.venue import (
    Capabilities,
    Lookup,
    OrderToFind,
    ReportPage,
    SendOutcome,
    VenueFill,
    VenueOrder,
    VenueUnavailable,
)
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, VENUE, WORKER, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START, ManualClock
from tests.support.sequencing import running_sequencer

KEY = (ACCOUNT, "USDJPY")
OUR_TAG = "ours"
_groups = count(1)


class ShownVenue(NullVenue):
    """A venue whose orders and reports are set by the test."""

    def __init__(self, name: VenueName = VENUE) -> None:
        super().__init__(name, clock=ManualClock())
        self.shown: dict[VenueClientOrderId, VenueOrder] = {}
        self.reported: list[ExecutionReport] = []
        self.asked: list[VenueClientOrderId] = []
        self.execution_ids: ExecutionIdScope = "venue"
        self.lookup: Lookup = "all"
        self.can_be_asked = True
        self.unanswered: set[VenueClientOrderId] = set()
        """The ids about which it cannot be asked."""
        self.on_lookup: Callable[[], Awaitable[object]] | None = None
        """What happens while the next lookup is under way."""
        self.amended: list[VenueClientOrderId] = []
        """The amends that it was sent."""
        self.on_amend: Callable[[], Awaitable[SendOutcome]] | None = None
        """Answers the amends; until it is set, the order is unknown here."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, execution_ids=self.execution_ids, lookup=self.lookup)

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        self.asked.append(order.client_order_id)
        if self.on_lookup is not None:
            during, self.on_lookup = self.on_lookup, None
            await during()
        if not self.can_be_asked or order.client_order_id in self.unanswered:
            raise VenueUnavailable("not now")
        return self.shown.get(order.client_order_id)

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        self.amended.append(amend.client_order_id)
        return await super().amend(order, amend) if self.on_amend is None else await self.on_amend()

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        if not self.can_be_asked:
            raise VenueUnavailable("not now")
        yield [order for order in self.shown.values() if order.status in ("WORKING", "PARTIALLY_FILLED")]

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        first = number_of(after)
        page = tuple(self.reported[first : first + limit])
        return ReportPage(page, cursor_text(first + len(page)))

    def show(self, order: Order, status: ReportStatus, *fills: str, filled_qty: str | None = None) -> None:
        """Have this order at the venue, with fills such as `a:10`: quantity 10 under the id `a`."""
        parts = [fill.split(":") for fill in fills]
        shown = tuple(
            VenueFill(exec_id=exec_id, qty=Decimal(qty), price=Decimal(150), at=START) for exec_id, qty in parts
        )
        self.shown[order.venue_client_order_id] = VenueOrder(
            venue_client_order_id=order.venue_client_order_id,
            venue_order_id="venue-1",
            status=status,
            filled_qty=Decimal(filled_qty) if filled_qty is not None else sum((fill.qty for fill in shown), ZERO),
            fills=shown,
        )


class Sweeping:
    """A recorder and a sweeper with their venue and orders."""

    def __init__(
        self,
        database: Database,
        *,
        restored_seq: int | None = None,
        name: VenueName = VENUE,
        route: Sequence[VenueName] = (),
        may_be_amended: MayBeLost = never_lost,
    ) -> None:
        """`restored_seq`: the first number after a restore; `route`: the venues of every symbol."""
        self.journal, self.queries = database.journal, database.queries
        self.venue = ShownVenue(name)
        self.clock = ManualClock()
        self.metrics = Metrics()
        sequencer = running_sequencer(self.journal, self.clock, self.metrics)
        self.amends = LostAmends(
            restored_seq=restored_seq,
            is_ours=lambda client_id: client_id.startswith(OUR_TAG),
            journal=self.journal,
            commit=sequencer.commit,
            clock=self.clock,
            venues_of=lambda _symbol: route,
            may_be_amended=may_be_amended,
        )
        self.recorder = Recorder(
            self.venue,
            journal=self.journal,
            queries=self.queries,
            sequencer=sequencer,
            clock=self.clock,
            metrics=self.metrics,
            amends=self.amends,
        )
        self.sweeper = self.a_sweeper()

    def a_sweeper(self) -> Sweeper:
        return Sweeper(
            self.venue,
            self.recorder,
            journal=self.journal,
            queries=self.queries,
            commit=self.commit,
            clock=self.clock,
            metrics=self.metrics,
            interval=timedelta(seconds=30),
        )

    async def commit(self, change: Change) -> Outcome:
        [outcome] = await self.journal.append(0, f"group-{next(_groups)}", [change], START)
        return outcome

    async def working(self, symbol: str = "USDJPY") -> Order:
        """An order of 100 that the venue has."""
        accepted = an_accept(qty=Decimal(100), symbol=symbol)
        sending = begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
        sent = record_sent(state_after(accepted, sending), sending.outbox[0], "venue-1", START)
        for change in (accepted, sending, sent):
            await self.commit(change)
        return sent.orders[0]

    async def state(self, order: Order) -> OrderState:
        return (await self.journal.load([order.order_id]))[order.order_id]

    async def receive(self, *reports: ExecutionReport) -> None:
        self.venue.reported += reports
        await self.recorder.run_once()

    async def swept(self) -> int:
        self.clock.advance(GRACE)
        return await self.sweeper.run_once()

    async def held(self) -> Decimal:
        found = (await self.journal.load_positions([KEY])).get(KEY)
        return ZERO if found is None else found.qty

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0


def report(
    state: OrderState, exec_id: str, qty: str, total: str, status: ReportStatus = "PARTIALLY_FILLED"
) -> ExecutionReport:
    plain = a_report(state, status, exec_id=exec_id, qty=Decimal(qty))
    return replace(plain, filled_qty_total=Decimal(total), last_price=Decimal(150) if plain.last_qty else None)
