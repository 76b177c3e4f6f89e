"""The life of an order in words: every event has its renderer, every code its words, and the text reads as recorded."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from itertools import count
from typing import Any, get_args

import msgspec
import pytest

from switchyard.domain import decisions
from switchyard.domain.accounts.positions import apply_fill
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.events import EventType
from switchyard.domain.journal.facts import DecisionFact, Quote, RouteFact
from switchyard.domain.market.routing import Candidate, Wanted, ranked
from switchyard.domain.orders.amends import Amend, last_id
from switchyard.domain.orders.explain import CODES, EVENTS_MAX, OF_NO_ORDER, RENDERERS, Explanation, explain_order
from switchyard.domain.orders.keys import AMEND_ORDER, CLOSE_POSITION
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reasons import EndReason, SendCode
from switchyard.domain.orders.reports import ReportStatus
from switchyard.domain.risk.checks import Violation
from switchyard.domain.risk.claims import Terms
from tests.support.build import ACCOUNT, VENUE, WORKER, a_report, an_entry, an_order_id
from tests.support.journal_checks import commit
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.record import check_text

CHECKS = ("KILL_SWITCH", "RISK_MAX_QTY", "COLLAR")
_numbers = count(1)


class Life:
    """An order whose decisions are committed one after the other, a moment apart."""

    def __init__(
        self,
        *,
        closes: bool = False,
        violation: Violation | None = None,
        route: RouteFact | None = None,
        **request: Any,
    ) -> None:
        self.clock = ManualClock()
        self.database = MemoryDatabase(self.clock)
        self.order_id: OrderId = an_order_id()
        body: dict[str, Any] = {
            "symbol": "USDJPY",
            "side": "BUY",
            "type": "LIMIT",
            "qty": Decimal(1000),
            "price": Decimal("150.125"),
            "time_in_force": "GTC",
            "strategy": "carry",
        }
        key = an_entry("rebalance-17", self.order_id)
        self.accepted = decisions.accept(
            OrderRequest(**body | request),
            account=ACCOUNT,
            order_id=self.order_id,
            venue=VENUE,
            venue_client_order_id=VenueClientOrderId(f"test-{next(_numbers)}"),
            key=msgspec.structs.replace(key, operation=CLOSE_POSITION) if closes else key,
            quote=Quote(bid=Decimal("150.1"), ask=Decimal("150.12")),
            now=START,
            violation=violation,
            route=route,
            terms=Terms(
                currency="JPY",
                price=request.get("price", Decimal("150.125")) or Decimal("150.12"),
                reducing=closes,
                reduce_only=closes,
            ),
        )

    @property
    def state(self) -> OrderState:
        return self.database.journal.state(self.order_id)

    async def begin(self, held: int = 0) -> "Life":
        if held:
            price = Decimal("149.5")
            bought = apply_fill(
                None, account=ACCOUNT, symbol="USDJPY", side="BUY", qty=Decimal(held), price=price, now=START
            )
            self.database.journal.positions[bought.key] = bought
        await commit(self.database.journal, self.accepted)
        return self

    async def then(self, decide: Callable[[OrderState], Change | None], after: float = 0.25) -> "Life":
        self.clock.advance(timedelta(seconds=after))
        change = decide(self.state)
        assert change is not None
        await self.database.journal.append(0, f"step-{next(_numbers)}", [change], self.clock.now())
        return self

    async def attempt(self, kind: Any = "new") -> "Life":
        return await self.then(
            lambda state: decisions.begin_attempt(state, state.row(kind, 1), WORKER, self.clock.now()), 0.001
        )

    async def sent(self, kind: Any = "new") -> "Life":
        return await self.then(
            lambda state: decisions.record_sent(state, state.row(kind, 1), "sim-42", self.clock.now()), 0.02
        )

    async def report(self, status: ReportStatus, qty: int = 0, price: str | None = None, **fields: Any) -> "Life":
        def decide(state: OrderState) -> Change:
            key = (state.order.account_id, state.order.symbol)
            held = self.database.journal.positions.get(key)
            report = msgspec.structs.replace(
                a_report(state, status, exec_id=f"exec-{next(_numbers)}", qty=Decimal(qty)),
                last_price=None if price is None else Decimal(price),
                **fields,
            )
            return decisions.apply_report(state, held, report, self.clock.now())

        return await self.then(decide)

    async def explained(self) -> Explanation:
        found = await self.database.queries.history_of(self.order_id, EVENTS_MAX + 1)
        assert found is not None
        return explain_order(*found, CHECKS)


async def doubtful_and_cancelled() -> Life:
    life = await Life().begin()
    await life.attempt()
    await life.then(
        lambda state: decisions.record_unsent(
            state, state.row("new", 1), "BROKER_DOWN", life.clock.now() + timedelta(seconds=2), life.clock.now()
        )
    )
    await life.attempt()
    await life.then(
        lambda state: decisions.record_doubt(
            state, state.row("new", 1), "NETWORK_TIMEOUT", None, life.clock.now(), detail="no answer within 5 s"
        ),
        5,
    )
    await life.then(lambda state: decisions.record_absent(state, state.row("new", 1), life.clock.now()), 12)
    await life.attempt()
    await life.sent()
    await life.report("PARTIALLY_FILLED", 300, "150.12", fee=Decimal("4.5"), fee_currency="JPY")
    await life.report("PARTIALLY_FILLED", 200, "150.1")
    await life.then(lambda state: decisions.request_cancel(state, life.clock.now()), 60)
    await life.attempt("cancel")
    await life.sent("cancel")
    await life.report("PARTIALLY_FILLED", 100, "150.09")
    await life.report("CANCELED", reason="CANCELED_BY_REQUEST")
    return await life.report("PARTIALLY_FILLED", 50, "150.08")


async def decided_by_a_person() -> Life:
    life = await Life(side="SELL").begin()
    await life.attempt()
    await life.then(
        lambda state: decisions.record_doubt(state, state.row("new", 1), "SENDER_DIED", None, life.clock.now())
    )
    await life.then(lambda state: decisions.request_cancel(state, life.clock.now()))
    decision = DecisionFact(verdict="not-sent", by="duty-desk", reason="not on the broker's screen")
    return await life.then(
        lambda state: decisions.decide_by_hand(state, state.row("new", 1), decision, life.clock.now()), 3600 * 20
    )


async def settled_by_a_report() -> Life:
    life = Life(closes=True, type="MARKET", price=None, side="SELL", time_in_force="IOC", strategy=None)
    await life.begin(held=1000)
    await life.attempt()
    await life.then(
        lambda state: decisions.record_doubt(
            state, state.row("new", 1), "BROKER_5XX", life.clock.now() + timedelta(seconds=1), life.clock.now()
        )
    )
    return await life.report("FILLED", 1000, "150.11")


async def rejected_by_the_venue() -> Life:
    life = await Life().begin()
    await life.attempt()
    return await life.then(
        lambda state: decisions.record_rejected(
            state, state.row("new", 1), "BAD_REQUEST", life.clock.now(), detail="INVALID_PRICE"
        )
    )


async def rejected_by_risk() -> Life:
    return await Life(violation=Violation("RISK_MAX_QTY", "qty 1000 is above 500 (RISK_MAX_QTY)")).begin()


async def cancelled_unsent() -> Life:
    life = await Life().begin()
    return await life.then(lambda state: decisions.request_cancel(state, life.clock.now()))


async def amended_three_times() -> Life:
    """Before it was sent, in doubt and refused, and shown by a fill."""
    life = await Life().begin()
    amends = count(1)

    async def amend(qty: int, price: str) -> None:
        number = next(amends)

        def decide(state: OrderState) -> Change:
            key = an_entry(f"amend-{number}", life.order_id)
            wanted = Amend(
                client_order_id=VenueClientOrderId(f"amend-{number}"),
                orig_client_order_id=last_id(state),
                qty=Decimal(qty),
                price=Decimal(price),
                reserve_price=Decimal(price),
                operation=AMEND_ORDER,
                key=key.idempotency_key,
            )
            entry = msgspec.structs.replace(key, operation=AMEND_ORDER)
            return decisions.request_amend(state, wanted, entry, life.clock.now(), reducing=True)

        await life.then(decide)

    async def begin(number: int) -> None:
        await life.then(
            lambda state: decisions.begin_attempt(state, state.row("amend", number), WORKER, life.clock.now()), 0.001
        )

    await amend(1200, "150.125")
    await life.attempt()
    await life.sent()
    await amend(1200, "150.2")
    await begin(2)
    await life.then(
        lambda state: decisions.record_doubt(state, state.row("amend", 2), "NETWORK_TIMEOUT", None, life.clock.now()), 5
    )
    await life.then(lambda state: decisions.record_absent(state, state.row("amend", 2), life.clock.now()), 12)
    await amend(2000, "150.3")
    await begin(3)
    await life.report("PARTIALLY_FILLED", 1500, "150.3")
    return await life.report("FILLED", 500, "150.3")


async def chosen_and_moved() -> Life:
    quote = Quote(bid=Decimal("150.120"), ask=Decimal("150.125"))
    best = Candidate(venue=VenueName("sim"), quote=quote, fee_percent=Decimal("0.01"))
    others = [
        Candidate(venue=VenueName("dear"), quote=quote, fee_percent=Decimal("0.1")),
        Candidate(venue=VenueName("mute")),
    ]
    life = await Life(route=ranked(Wanted("BUY", Decimal(1000), Decimal("0.001")), [*others, best])).begin()
    await life.attempt()
    await life.then(
        lambda state: decisions.record_unsent(
            state, state.row("new", 1), "BROKER_DOWN", life.clock.now(), life.clock.now(), detail="Connection refused"
        )
    )
    await life.then(lambda state: decisions.reroute(state, VenueName("dear"), "5 faults in a row", life.clock.now()))
    await life.attempt()
    return await life.sent()


async def test_the_lives_of_orders_read_as_recorded() -> None:
    lives = [
        await doubtful_and_cancelled(),
        await decided_by_a_person(),
        await settled_by_a_report(),
        await rejected_by_the_venue(),
        await rejected_by_risk(),
        await cancelled_unsent(),
        await amended_three_times(),
        await chosen_and_moved(),
    ]
    texts = ["\n".join((await life.explained()).lines).replace(life.order_id, "ord_<id>") for life in lives]
    check_text("explained", "\n\n".join(texts) + "\n")


async def test_every_step_has_its_event_and_kind() -> None:
    explained = await (await doubtful_and_cancelled()).explained()

    assert [step.seq for step in explained.steps] == sorted(step.seq for step in explained.steps)
    kinds = list(dict.fromkeys(step.kind for step in explained.steps))
    assert kinds == ["check", "route", "send", "doubt", "report", "position", "cancel", "end"]
    assert (explained.status, explained.has_more) == ("CANCELED", False)


async def test_a_long_life_is_told_from_its_beginning_and_says_that_there_is_more() -> None:
    life = await Life(qty=Decimal(10_000)).begin()
    for _ in range(EVENTS_MAX // 2):
        await life.report("PARTIALLY_FILLED", 1, "150.1")

    explained = await life.explained()

    assert explained.has_more
    assert explained.steps[0].event == "OrderAccepted"
    assert f"The first {EVENTS_MAX} events are told" in explained.lines[-2]
    assert explained.lines[-1].startswith("Now: PARTIALLY_FILLED, it is open at sim; 250 of 10000 filled")


def test_every_type_of_event_has_a_renderer_or_is_about_no_order() -> None:
    assert set(RENDERERS) | OF_NO_ORDER == set(get_args(EventType))
    assert not set(RENDERERS) & OF_NO_ORDER


@pytest.mark.parametrize("codes", [SendCode, EndReason], ids=["SendCode", "EndReason"])
def test_every_code_has_words(codes: Any) -> None:
    flat = {code for part in get_args(codes) for code in (get_args(part) or (part,))}
    assert flat <= set(CODES)
