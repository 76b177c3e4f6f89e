"""The price collar before a resend: an order that is far from the market by then is not sent again."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from msgspec.structs import replace

from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS, Catalogue
from switchyard.domain.orders.order import Order
from switchyard.flow.sending.pre_send_checks import Collars
from switchyard.ports.quotes import Quotes
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent
from tests.support.sending import BatchVenue, Sending

# The orders of `Sending` have the price 150.125.
NEAR, FAR = Decimal(150), Decimal(160)


class Market:
    """Quotes that the test sets."""

    def __init__(self) -> None:
        self.price: Decimal | None = NEAR

    def quote(self, _venue: VenueName, symbol: str) -> Quote | None:
        return None if self.price is None else Quote(bid=self.price, ask=self.price)

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        return self.quote(venue, symbol)


def collared(market: Market, percent: int | None = 1) -> Collars:
    limited = replace(DEFAULT_INSTRUMENTS["USDJPY"], collar_percent=None if percent is None else Decimal(percent))
    return Collars(Catalogue({"USDJPY": limited}), cast(Quotes, market))


def unsent(_orders: Sequence[Order]) -> list[SendOutcome]:
    return [Unsent("BROKER_DOWN")]


def lost(_orders: Sequence[Order]) -> list[SendOutcome]:
    return [Ambiguous("NETWORK_TIMEOUT")]


def accepted(_orders: Sequence[Order]) -> list[SendOutcome]:
    return [Accepted("venue-1")]


class Case:
    """An order whose first attempt had this outcome, and whose next attempt is due."""

    def __init__(self, market: Market, percent: int | None = 1) -> None:
        self.market = market
        self.collars = collared(market, percent)
        self.order_id = OrderId("")
        self.terms: dict[str, Any] = {}

    async def begin(self, outcome: Callable[[Sequence[Order]], list[SendOutcome]]) -> "Case":
        self.venue = BatchVenue("permanent", outcome, accepted)
        self.sending = Sending(self.venue, guard=self.collars)
        [self.order_id] = await self.sending.accept(**self.terms)
        await self.again()
        self.sending.clock.advance(timedelta(seconds=3))
        return self

    async def again(self) -> None:
        """Claim and send what is due."""
        await self.sending.lanes.renew()
        await self.sending.dispatcher.run_once()
        await self.sending.dispatcher.drain(60)
        self.sending.dispatcher.inline_first_send.start()

    @property
    def ended(self) -> tuple[str, str | None, str | None]:
        """Status and reason of the order, and the error of its row."""
        state = self.sending.state(self.order_id)
        return state.order.status, state.order.reason, state.outbox[0].last_error


async def test_an_unsent_order_that_left_its_collar_ends_instead_of_being_sent() -> None:
    case = await Case(Market()).begin(unsent)
    case.market.price = FAR
    await case.again()
    assert case.ended == ("CANCELED", "COLLAR", "COLLAR")
    assert len(case.venue.sent) == 1
    assert "6.17 % away" in (case.sending.state(case.order_id).outbox[0].error_detail or "")


async def test_one_within_its_collar_is_sent_again() -> None:
    case = await Case(Market()).begin(unsent)
    await case.again()
    assert case.ended[0] == "WORKING"
    assert len(case.venue.sent) == 2


async def test_an_order_in_doubt_that_left_its_collar_is_not_sent_again_and_stays_in_doubt() -> None:
    case = await Case(Market()).begin(lost)
    case.market.price = FAR
    await case.again()
    assert case.ended == ("UNKNOWN", None, "NETWORK_TIMEOUT")
    assert case.sending.row_statuses() == ["uncertain"]
    assert len(case.venue.sent) == 1


async def test_without_a_quote_the_order_waits_until_there_is_one() -> None:
    case = await Case(Market()).begin(unsent)
    case.market.price = None
    await case.again()
    assert (case.ended[0], case.sending.row_statuses(), len(case.venue.sent)) == ("ACCEPTED", ["failed"], 1)
    case.market.price = NEAR
    await case.again()
    assert len(case.venue.sent) == 2


async def test_an_instrument_without_a_collar_needs_no_quote() -> None:
    case = await Case(Market(), percent=None).begin(unsent)
    case.market.price = None
    await case.again()
    assert len(case.venue.sent) == 2


@pytest.mark.parametrize(
    ("stop", "market", "sent"),
    [
        ("140", "150", 2),  # it waits: how far the market is does not matter
        ("140", "139", 2),  # triggered at once, near its stop price
        ("140", "120", 1),  # the market passed it long ago
    ],
)
async def test_a_stop_order_is_not_sent_again_once_the_market_is_far_beyond_it(
    stop: str, market: str, sent: int
) -> None:
    case = Case(Market())
    case.terms = {"type": "STOP", "side": "SELL", "price": None, "stop_price": Decimal(stop)}
    await case.begin(unsent)
    case.market.price = Decimal(market)
    await case.again()
    assert len(case.venue.sent) == sent


async def test_the_first_attempt_was_judged_when_the_order_was_accepted() -> None:
    market = Market()
    market.price = FAR
    case = await Case(market).begin(unsent)
    assert len(case.venue.sent) == 1
