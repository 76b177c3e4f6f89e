"""Attempts that are held back because of a pause or a slow database: their orders do not run out of tries."""

import asyncio
from datetime import timedelta

from switchyard.ports.venue import Capabilities
from tests.support.sending_faults import Plan
from tests.support.sending_judge import violations
from tests.support.sending_site import Field
from tests.support.virtual_time import run_virtually

ORDERS = 150
# The attempt that went stale, one that was being committed meanwhile, and the one that is sent.
ATTEMPTS_MAX = 3


def test_orders_of_a_long_line_do_not_hold_each_other_back_again_and_again() -> None:
    async def pause_under_load() -> tuple[int, list[str]]:
        capabilities = Capabilities(dedupe="permanent", lookup="all", acceptance_window=timedelta(seconds=1))
        field = Field(0, Plan(), capabilities)
        field.lines = field.lines[:1]
        worker = field.add_worker(slots=64)
        await asyncio.sleep(1)
        for number in range(ORDERS):
            field.post(worker)
            await asyncio.sleep(0.001)
            if number == ORDERS // 2:
                field.call(worker, worker.pause(3.0))
        await asyncio.sleep(30)
        return max(row.attempt for row in field.database.journal.outbox.values()), list(violations(field))

    attempts, found = run_virtually(pause_under_load())
    assert not found, "\n".join(found)
    assert attempts <= ATTEMPTS_MAX


def test_a_slow_database_does_not_exhaust_the_tries_of_an_order() -> None:
    """Every attempt goes stale while its commit takes longer than it may; the venue has not been asked once."""

    async def with_slow_commits() -> tuple[set[str], list[str]]:
        capabilities = Capabilities(dedupe="permanent", lookup="all", acceptance_window=timedelta(seconds=1))
        field, slow = Field(0, Plan(), capabilities), Plan(slow=1.0, slow_seconds=8.0)
        worker = field.add_worker(slots=8)
        worker.journal._site = worker.site._replace(plan=slow)
        await asyncio.sleep(1)
        for _ in range(20):
            field.post(worker)
        await asyncio.sleep(400)
        slow.calm()
        await asyncio.sleep(600)
        return {order.status for order in field.database.journal.orders.values()}, list(violations(field))

    statuses, found = run_virtually(with_slow_commits())
    assert not found, "\n".join(found)
    assert "REJECTED" not in statuses
