"""An order that closes a position is not sent once the position is gone."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import pytest

from switchyard.domain.accounts.positions import apply_fill
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.order import Order, Side
from switchyard.domain.risk.claims import Terms
from switchyard.flow.sending.pre_send_checks import Closes, Collars
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent
from tests.support.build import ACCOUNT, an_accept
from tests.support.memory.clock import START
from tests.support.sending import Answers, BatchVenue, Sending


class NoQuotes:
    """A market without prices."""

    def quote(self, _venue: VenueName, _symbol: str) -> Quote | None:
        return None

    async def ask(self, _venue: VenueName, _symbol: str) -> Quote | None:
        return None


class Site:
    """A worker, and an order that sells 1,000 to close a position."""

    def __init__(self, *outcomes: SendOutcome) -> None:
        self.venue = BatchVenue("permanent", *map(_answer, outcomes))
        self.sending = Sending(self.venue)
        guard = Closes(Collars(Catalogue(), NoQuotes()), self.sending.database.journal)
        self.sending.dispatcher._guard = guard
        self.order_id = OrderId("")

    def hold(self, side: Side, qty: int) -> None:
        held = apply_fill(
            None, account=ACCOUNT, symbol="USDJPY", side=side, qty=Decimal(qty), price=Decimal(150), now=START
        )
        self.sending.database.journal.positions[held.key] = held

    async def accept(self) -> None:
        change = an_accept(side="SELL", now=self.sending.clock.now(), terms=Terms(reducing=True, reduce_only=True))
        self.order_id = change.orders[0].order_id
        self.sending.dispatcher.inline_first_send.stop()
        await self.sending.sequencer.commit(change)

    async def send(self) -> None:
        """Claim and send what is due."""
        self.sending.clock.advance(timedelta(seconds=3))
        await self.sending.lanes.renew()
        await self.sending.dispatcher.run_once()
        await self.sending.dispatcher.drain(60)

    @property
    def ended(self) -> tuple[str, str | None]:
        order = self.sending.state(self.order_id).order
        return order.status, order.reason


def _answer(outcome: SendOutcome) -> Answers:
    def answer(_orders: Sequence[Order]) -> list[SendOutcome]:
        return [outcome]

    return answer


@pytest.mark.parametrize(("side", "qty"), [("BUY", 999), ("SELL", 1000)], ids=["smaller", "on the other side"])
async def test_a_close_that_waited_ends_if_its_position_is_gone(side: Side, qty: int) -> None:
    site = Site(Accepted("venue-1"))
    site.hold("BUY", 1000)
    await site.accept()
    site.hold(side, qty)
    await site.send()
    assert site.ended == ("CANCELED", "NOT_REDUCING")
    detail = site.sending.state(site.order_id).outbox[0].error_detail
    assert detail == f"the position in USDJPY is {qty if side == 'BUY' else -qty} by now"
    assert site.venue.sent == []


async def test_one_whose_position_is_there_is_sent_and_sent_again() -> None:
    site = Site(Unsent("BROKER_DOWN"), Accepted("venue-1"))
    site.hold("BUY", 1000)
    await site.accept()
    await site.send()
    await site.send()
    assert site.ended == ("WORKING", None)
    assert len(site.venue.sent) == 2


async def test_one_in_doubt_whose_position_is_gone_is_not_sent_again_and_stays_in_doubt() -> None:
    site = Site(Ambiguous("NETWORK_TIMEOUT"), Accepted("venue-1"))
    site.hold("BUY", 1000)
    await site.accept()
    await site.send()
    site.hold("BUY", 1)
    await site.send()
    assert site.ended == ("UNKNOWN", None)
    assert site.sending.row_statuses() == ["uncertain"]
    assert len(site.venue.sent) == 1
