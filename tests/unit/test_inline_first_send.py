"""First attempts that begin in the commit of their order: where they may, what they occupy, and how they keep order."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import pytest

from switchyard.domain.errors import JournalUnavailable, OutcomeUnknown
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.orders.order import Order
from switchyard.flow.clock import Wake
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Accepted, SendOutcome
from tests.support.build import an_accept
from tests.support.polling import until
from tests.support.sending import SLOTS, BatchVenue, Sending
from tests.support.wrapped import Forwarding


def accepts(orders: Sequence[Order]) -> list[SendOutcome]:
    return [Accepted(f"venue-{order.order_id}") for order in orders]


class Watched(Forwarding):
    """A journal whose appends can be held, and fail after or instead of the commit."""

    def __init__(self, port: Journal) -> None:
        super().__init__(port)
        self.may_append = asyncio.Event()
        self.may_append.set()
        self.before_commit: Callable[[], None] = lambda: None
        self.error_instead: Exception | None = None
        self.error_after: Exception | None = None
        self.groups: list[list[Change]] = []
        self.pause_seconds = 0.0

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        self.groups.append(list(changes))
        self.before_commit()
        await self.may_append.wait()
        await asyncio.sleep(self.pause_seconds)
        if self.error_instead is not None:
            error, self.error_instead = self.error_instead, None
            raise error
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        if self.error_after is not None:
            error, self.error_after = self.error_after, None
            raise error
        return outcomes


class Site:
    """A worker whose dispatcher runs, and its journal."""

    def __init__(self, venue: BatchVenue) -> None:
        self.venue = venue
        self.journals: list[Watched] = []
        self.sending = Sending(venue, self._watched)
        self.runs: asyncio.Task[None] | None = None

    def _watched(self, journal: Journal) -> Watched:
        self.journals.append(Watched(journal))
        return self.journals[0]

    @property
    def journal(self) -> Watched:
        return self.journals[0]

    async def start(self) -> "Site":
        """Own every lane, and let attempts begin; the queue is left alone, except where a test runs the dispatcher."""
        await self.sending.lanes.renew()
        self.sending.dispatcher.inline_first_send.start()
        return self

    async def accept(self, symbol: str = "USDJPY", key: str | None = None) -> OrderId:
        change = an_accept(now=self.sending.clock.now(), symbol=symbol, key=key)
        assert isinstance(await self.sending.sequencer.commit(change), Committed)
        return change.orders[0].order_id

    def statuses(self) -> list[str]:
        return list(self.sending.row_statuses())


async def site(*answers: Callable[[Sequence[Order]], Sequence[SendOutcome]], dedupe: str = "permanent") -> Site:
    return await Site(BatchVenue(dedupe, *answers)).start()  # type: ignore[arg-type]


async def test_an_order_is_sent_from_the_commit_that_accepts_it() -> None:
    one = await site(accepts)
    order_id = await one.accept()
    await until(lambda: one.statuses() == ["sent"])
    assert one.venue.sent == [order_id]
    assert [len(group) for group in one.journal.groups] == [1, 1], "accepted and begun in one commit, then answered"
    assert one.sending.in_flight == 0


async def test_no_order_is_sent_before_the_commit_that_accepts_it() -> None:
    one = await site(accepts)
    one.journal.may_append.clear()
    accepting = asyncio.create_task(one.accept())
    await until(lambda: len(one.journal.groups) == 1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert one.venue.sent == []
    one.journal.may_append.set()
    order_id = await accepting
    await until(lambda: one.venue.sent == [order_id])


async def test_an_attempt_occupies_its_slot_before_its_commit() -> None:
    """Otherwise recovery, which may run between the commit and the send, takes it for one whose sender is gone."""
    one = await site(accepts)
    seen: list[float] = []
    one.journal.before_commit = lambda: seen.append(one.sending.in_flight)
    one.venue.open.clear()
    await one.accept()
    assert seen == [1.0]
    assert await one.sending.dispatcher.recover_once() == 0
    one.venue.open.set()
    await until(lambda: one.statuses() == ["sent"])


async def test_an_order_waits_behind_one_of_its_lane() -> None:
    one = await site(accepts, accepts)
    one.sending.dispatcher.inline_first_send.stop()
    first = await one.accept()
    one.sending.dispatcher.inline_first_send.start()
    second = await one.accept()
    elsewhere = await one.accept(symbol="EURUSD")
    assert one.statuses()[:2] == ["queued", "queued"]
    await until(lambda: one.venue.sent == [elsewhere])
    assert await one.sending.dispatcher.run_once() == 2
    await until(lambda: one.venue.sent == [elsewhere, first, second])


async def test_the_append_decides_where_the_hint_is_wrong_and_the_order_is_queued() -> None:
    one = await site(accepts)
    other = an_accept(now=one.sending.clock.now())  # of another process: not noted here
    await one.journal.port.append(0, "other", [other], one.sending.clock.now())
    await one.accept(key="k")
    assert one.statuses() == ["queued", "queued"]
    assert one.sending.in_flight == 0
    await one.accept()
    assert len(one.journal.groups) == 3, "the lane is known to have a queue: no attempt is tried in vain"


async def test_repeats_of_a_key_are_answered_when_their_first_attempt_must_wait() -> None:
    """Two groups of repeats are under way while the lane has a queue of another process."""
    one = await site(accepts)
    other = an_accept(now=one.sending.clock.now())
    await one.journal.port.append(0, "other", [other], one.sending.clock.now())
    one.journal.may_append.clear()
    requests = [asyncio.ensure_future(one.sending.sequencer.commit(an_accept(key="k"))) for _ in range(40)]
    await until(lambda: len(one.journal.groups) == 1)
    requests += [asyncio.ensure_future(one.sending.sequencer.commit(an_accept(key="k"))) for _ in range(80)]
    await until(lambda: len(one.journal.groups) == 2)
    one.journal.may_append.set()
    outcomes = await asyncio.wait_for(asyncio.gather(*requests), 60)
    assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
    assert all(outcome.key is not None for outcome in outcomes if isinstance(outcome, Conflict))


async def test_no_more_attempts_begin_than_there_are_slots() -> None:
    one = await site(*[accepts] * SLOTS)
    one.venue.open.clear()
    now = one.sending.clock.now()
    changes = [an_accept(now=now, symbol=f"S{number}", account=f"a{number % 2}") for number in range(SLOTS + 8)]
    await asyncio.gather(*map(one.sending.sequencer.commit, changes))
    assert one.statuses().count("sending") == SLOTS == one.sending.in_flight
    assert one.statuses().count("queued") == 8
    one.venue.open.set()
    await until(lambda: one.statuses().count("sent") == SLOTS)


async def test_slots_taken_while_the_queue_is_read_are_not_given_twice() -> None:
    one = await site(*[accepts] * 200)
    one.sending.dispatcher.inline_first_send.stop()
    for number in range(SLOTS):
        await one.accept(symbol=f"Q{number}")
    one.sending.dispatcher.inline_first_send.start()
    one.venue.open.clear()
    changes = [an_accept(now=one.sending.clock.now(), symbol=f"S{number}") for number in range(SLOTS)]
    claiming = asyncio.create_task(one.sending.dispatcher.run_once())
    await asyncio.gather(claiming, *map(one.sending.sequencer.commit, changes))
    assert one.sending.in_flight <= SLOTS
    one.venue.open.set()
    await until(lambda: one.sending.in_flight == 0)


async def test_an_attempt_begins_also_where_nothing_settles_a_doubt() -> None:
    one = await Site(BatchVenue("none", accepts, lookup="none")).start()
    await one.accept()
    await until(lambda: one.statuses() == ["sent"])


async def test_an_order_past_its_deadline_is_left_to_the_dispatcher() -> None:
    one = await site(accepts)
    late = an_accept(now=one.sending.clock.now() - timedelta(seconds=10), time_in_force="IOC")
    await one.sending.sequencer.commit(late)
    assert one.statuses() == ["queued"]


async def test_an_attempt_whose_commit_failed_gives_its_slot_back() -> None:
    one = await site(accepts)
    one.journal.error_instead = JournalUnavailable("away")
    with pytest.raises(JournalUnavailable):
        await one.accept()
    assert one.sending.in_flight == 0
    assert one.statuses() == []


async def test_an_attempt_whose_commit_was_not_answered_is_known_to_be_unsent() -> None:
    """The commit happened; this worker did not send, so recovery puts the order back instead of into doubt."""
    one = await site(accepts, dedupe="none")
    one.journal.error_after = OutcomeUnknown("the answer was lost")
    with pytest.raises(OutcomeUnknown):
        await one.accept()
    assert (one.statuses(), one.sending.in_flight) == (["sending"], 0)
    assert await one.sending.dispatcher.recover_once() == 1
    [row] = one.sending.database.journal.outbox.values()
    assert (row.status, row.last_error) == ("failed", "ATTEMPT_STALE")
    assert await one.sending.dispatcher.run_once() == 1
    await until(lambda: one.statuses() == ["sent"])
    assert len(one.venue.sent) == 1


async def test_orders_of_a_slow_commit_are_not_passed_by_later_ones() -> None:
    one = await site(*[accepts] * 8)
    one.journal.may_append.clear()
    first = asyncio.create_task(one.accept())
    await until(lambda: len(one.journal.groups) == 1)
    one.sending.clock.advance(timedelta(seconds=3))  # longer than an attempt may wait to be sent
    await one.sending.lanes.renew()
    second = asyncio.create_task(one.accept())
    await asyncio.sleep(0)
    one.journal.may_append.set()
    ids = [await first, await second]
    for _ in range(4):
        await asyncio.sleep(0.01)
        await one.sending.dispatcher.run_once()
    await until(lambda: one.statuses() == ["sent", "sent"])
    assert one.venue.sent == ids


async def test_orders_that_were_held_back_leave_however_many_attempts_that_took() -> None:
    """They go back to the queue one after the other; the first is claimed again while the last still waits."""
    one = await Site(BatchVenue("none", *[accepts] * 50, batch_max=1)).start()
    one.journal.pause_seconds = 0.005
    one.journal.may_append.clear()
    running = asyncio.create_task(one.sending.dispatcher.run(Wake()))
    accepting = [asyncio.ensure_future(one.accept()) for _ in range(12)]
    await until(lambda: len(one.journal.groups) >= 1)
    one.sending.clock.advance(timedelta(seconds=3))
    await one.sending.lanes.renew()
    one.journal.may_append.set()
    ids = await asyncio.gather(*accepting)
    await until(lambda: set(one.statuses()) <= {"sent", "dead"}, lambda: str(one.statuses()))
    assert one.venue.sent == ids
    running.cancel()


async def test_a_worker_that_stops_begins_no_more_attempts() -> None:
    one = await site(accepts)
    await one.sending.dispatcher.drain(60)
    await one.accept()
    assert one.statuses() == ["queued"]


async def test_attempts_begin_once_the_dispatcher_runs() -> None:
    """Not before its name is known to be alive: another worker would take the attempt for a dead worker's."""
    one = Site(BatchVenue("permanent", accepts, accepts))
    await one.sending.lanes.renew()
    first = await one.accept()
    assert one.statuses() == ["queued"]
    task = asyncio.create_task(one.sending.dispatcher.run(Wake()))
    await until(lambda: one.statuses() == ["sent"])
    second = await one.accept()
    assert len([group for group in one.journal.groups if group[0].unqueued_rows()]) == 1
    await until(lambda: one.statuses() == ["sent", "sent"])
    assert one.venue.sent == [first, second]
    task.cancel()
