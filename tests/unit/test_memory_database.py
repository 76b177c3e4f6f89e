"""The flow over the in-memory database: an example of how to run it without a database, a broker or a real clock."""

import asyncio
from datetime import timedelta

from switchyard.adapters.memory.venue import NullVenue
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.changes import Committed
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import Wake
from switchyard.flow.commit.sequencer import Sequencer
from switchyard.flow.executions.record import Recorder
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, VENUE, an_accept
from tests.support.memory.clock import ManualClock, SeededRandomness
from tests.support.memory.database import MemoryDatabase

WORKER = WorkerId("worker-1")


async def test_an_order_is_accepted_sent_and_filled() -> None:
    clock, metrics, randomness = ManualClock(), Metrics(), SeededRandomness()
    database, venue = MemoryDatabase(clock), NullVenue(VENUE, clock=clock)
    sequencer = Sequencer(
        database.journal,
        clock=clock,
        randomness=randomness,
        metrics=metrics,
        wakes=[],
        capacity=100,
        on_broken=lambda error: None,
    )
    lanes = HeldLanes(database.lanes, WORKER, clock)
    dispatcher = Dispatcher(
        worker=WORKER,
        sequencer=sequencer,
        queries=database.queries,
        liveness=database.liveness,
        lanes=lanes,
        venues={VENUE: venue},
        clock=clock,
        randomness=randomness,
        metrics=metrics,
        batch_size=8,
        parallelism=1,
        retry_max=8,
        idle_seconds=0.01,
        stuck_after=timedelta(minutes=10),
        kills=ActiveKills(database.kills, metrics),
        waiting=WaitingLanes(Wake()),
    )
    recorder = Recorder(
        venue,
        journal=database.journal,
        queries=database.queries,
        sequencer=sequencer,
        clock=clock,
        metrics=metrics,
    )
    committing = asyncio.create_task(sequencer.run())
    accepted = an_accept(now=clock.now())

    assert isinstance(await sequencer.commit(accepted), Committed)
    await lanes.renew()
    dispatcher.open_venue(VENUE)
    assert await dispatcher.run_once() == 1
    await dispatcher.drain(60)
    assert await recorder.run_once() == 1
    committing.cancel()

    order = await database.queries.order(accepted.orders[0].order_id)
    assert order is not None
    assert (order.status, order.filled_qty) == ("FILLED", order.qty)
    [position] = await database.queries.positions(ACCOUNT, limit=10)
    assert position.qty == order.qty
    assert [event.type for event in database.journal.events[0]] == [
        "OrderAccepted",
        "OrderSending",
        "OrderSent",
        "ExecutionReport",
        "OrderUpdated",
    ]
