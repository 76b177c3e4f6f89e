"""The count of client order ids that leave a worker: it trips only where more leave than orders were accepted."""

import pytest

from switchyard.domain.decisions import begin_attempt, record_sent
from switchyard.domain.ids import VenueClientOrderId
from switchyard.flow.sending.sends import SentIds
from switchyard.telemetry.metrics import Metrics
from tests.support.build import WORKER, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START


class Watch:
    """A count over a database, and the kills that it has set."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.reasons: list[str] = []
        self.ids = SentIds(journal=database.journal, queries=database.queries, metrics=Metrics(), trip=self._trip)

    async def _trip(self, reason: str) -> None:
        self.reasons.append(reason)

    async def accept(self) -> VenueClientOrderId:
        change = an_accept()
        await self.database.journal.append(0, change.orders[0].order_id, [change], START)
        return change.orders[0].venue_client_order_id


@pytest.fixture
async def watch(database: Database) -> Watch:
    return Watch(database)


async def test_orders_that_wait_or_are_accepted_may_leave_and_leave_again(watch: Watch) -> None:
    waiting = await watch.accept()
    await watch.ids.start()
    accepted = await watch.accept()
    for _ in range(3):
        watch.ids.note([waiting, accepted])
        await watch.ids.check_once()
    assert watch.reasons == []


async def test_one_id_too_many_trips(watch: Watch) -> None:
    await watch.ids.start()
    watch.ids.note([await watch.accept(), VenueClientOrderId("made-up")])
    await watch.ids.check_once()
    [reason] = watch.reasons
    assert "2 client order ids" in reason
    assert "1 orders" in reason


async def test_an_order_that_was_sent_before_the_period_gives_no_room(watch: Watch) -> None:
    change = an_accept()
    begun = begin_attempt(state_after(change), change.outbox[0], WORKER, START)
    sent = record_sent(state_after(change, begun), begun.outbox[0], "venue-1", START)
    for number, step in enumerate((change, begun, sent)):
        await watch.database.journal.append(0, f"step-{number}", [step], START)
    await watch.ids.start()
    watch.ids.note([VenueClientOrderId("made-up")])
    await watch.ids.check_once()
    assert len(watch.reasons) == 1
    await watch.ids.check_once()
    assert len(watch.reasons) == 1, "each period counts by itself"
