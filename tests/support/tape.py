"""A journal on paper: events of orders and executions with their places, for tests of the books."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.events import EventType, JournalEvent, event
from switchyard.domain.journal.facts import AcceptedFact, AcceptedOrder, OrderChange, OrderFact, ReportFact
from switchyard.domain.journal.lines import BusEvent, Place, SourcePosition, bus_event, head_text, link, stamp
from switchyard.domain.orders.order import Side
from switchyard.domain.values import ONE
from switchyard.ports.bus import Page

START = datetime(2026, 1, 5, 9, tzinfo=UTC)


class Tape:
    """Appends events; `events` are all of them, in order."""

    def __init__(self) -> None:
        self.events: list[BusEvent] = []
        self.epoch = 1
        self.skipped = 0
        """Numbers that a new epoch leaves out."""
        self._filled: dict[str, Decimal] = {}

    @property
    def place(self) -> Place:
        return self.events[-1].place if self.events else Place()

    def accept(
        self,
        order: str,
        *,
        account: str = "demo",
        symbol: str = "USDJPY",
        side: Side = "BUY",
        qty: Decimal = Decimal(1000),
        price: Decimal | None = None,
        currency: str | None = "JPY",
        multiplier: Decimal = ONE,
        strategy: str | None = None,
    ) -> None:
        """An order is accepted."""
        accepted = AcceptedOrder(
            symbol=symbol,
            side=side,
            type="MARKET" if price is None else "LIMIT",
            time_in_force="GTC",
            qty=qty,
            price=price,
            venue=VenueName("sim"),
            accepted_at=self._now,
            currency=currency,
            multiplier=multiplier,
            strategy=strategy,
        )
        fact = AcceptedFact(order=accepted, venue_client_order_id=VenueClientOrderId(f"C{order}"))
        self._append("OrderAccepted", account, order, fact)

    def fill(self, order: str, exec_id: str, qty: Decimal, *, account: str = "demo", **changes: Any) -> None:
        """A fill of an order is reported; the venue counts its total."""
        self._filled[order] = self._filled.get(order, Decimal(0)) + qty
        fields: dict[str, Any] = {
            "exec_id": exec_id,
            "status": "PARTIALLY_FILLED",
            "last_qty": qty,
            "last_price": Decimal(150),
            "filled_qty_total": self._filled[order],
            "at": self._now,
            **changes,
        }
        self._append("ExecutionReport", account, order, ReportFact(**fields))
        self.update(order, account=account)

    def revise(
        self,
        order: str,
        exec_id: str,
        ref: str,
        *,
        account: str = "demo",
        corrected: tuple[Decimal, Decimal] | None = None,
        **changes: Any,
    ) -> None:
        """The venue voids the execution `ref`, or corrects its quantity and price."""
        qty, price = corrected or (Decimal(0), None)
        fact = ReportFact(
            exec_id=exec_id,
            ref_exec_id=ref,
            exec_type="CANCEL" if corrected is None else "CORRECT",
            status="PARTIALLY_FILLED",
            last_qty=qty,
            last_price=price,
            at=self._now,
            **changes,
        )
        self._append("ExecutionRevised", account, order, fact)

    def keyed(self) -> list[BusEvent]:
        """The events as a keyed topic has them: each names the event before it of its account."""
        previous: dict[str, int] = {}
        keyed = []
        for taken in self.events:
            account, seq = taken.event.account_id, taken.event.seq
            keyed.append(BusEvent(taken.epoch, taken.event, previous.get(account, 0)))
            previous[account] = seq
        return keyed

    def update(self, order: str, *, account: str = "demo") -> None:
        """An event that does not concern the books."""
        fact = OrderFact(order=OrderChange(status="WORKING", version=2, updated_at=self._now))
        self._append("OrderUpdated", account, order, fact)

    def reroute(self, order: str, venue: str) -> None:
        """An order that was never sent goes to another venue."""
        change = OrderChange(status="ACCEPTED", version=2, updated_at=self._now, venue=VenueName(venue))
        self._append("OrderRerouted", "demo", order, OrderFact(order=change))

    @property
    def _now(self) -> datetime:
        return START + timedelta(milliseconds=len(self.events))

    def _append(self, kind: EventType, account: str, order: str, fact: Any) -> None:
        made = event(kind, AccountId(account), OrderId(order), fact)
        seq = self.skipped + len(self.events) + 1
        text = head_text(self.epoch, 0, seq, stamp(self._now)) + made.tail
        journal_event = JournalEvent(
            seq, self._now, kind, made.account_id, made.order_id, text, link(self.place.hash, text)
        )
        self.events.append(bus_event(journal_event))


class TapeSource:
    """ports.bus.Source over a tape."""

    name = "journal"
    start: SourcePosition = Place()

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def check(self, position: SourcePosition) -> None:
        """It has every place."""

    async def page(self, after: SourcePosition, limit: int) -> Page:
        assert isinstance(after, Place)
        events = tuple(each for each in self._tape.events if each.event.seq > after.seq)[:limit]
        return Page(events, events[-1].place if events else after)

    async def lag(self, position: SourcePosition) -> int:
        assert isinstance(position, Place)
        return sum(each.event.seq > position.seq for each in self._tape.events)
