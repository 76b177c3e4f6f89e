"""The contract of `Runner`: embedded and Airflow. `make test-airflow` adds a real Airflow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from switchyard.adapters.airflow.client import AirflowClient
from switchyard.adapters.airflow.runner import AirflowRunner
from switchyard.adapters.memory.clock import ManualClock
from switchyard.adapters.memory.database import MemoryDatabase
from switchyard.bootstrap.rechecks import work_through
from switchyard.domain.pdca.requests import RecheckRequest
from switchyard.domain.pdca.strategies import StrategyBody
from switchyard.flow.pdca.embedded import EmbeddedRunner
from switchyard.flow.wake import Wake
from switchyard.ports.runner import Runner
from tests.support.airflow import DAG, PASSWORD, USER, fake_airflow
from tests.support.pdca import a_recheck
from tests.support.polling import until
from tests.support.recheck_site import ACCEPTED_AT, STRATEGY, RecheckSite, recheck_site

REQUEST = "01J8TPZ7YJ1E1X4C5N9ZP3M3QA"


class Site:
    """A runner with what carries its runs out."""

    def __init__(self, runner: Runner, rechecks: RecheckSite) -> None:
        self.runner = runner
        self.store = rechecks.store

    async def stored(self, request_id: str = REQUEST) -> RecheckRequest:
        request = msgspec.structs.replace(
            a_recheck(request_id, created_at=ACCEPTED_AT, dry_run=True), runner=self.runner.name
        )
        await self.store.create(request, request_id, "digest", [STRATEGY])
        return request


@pytest.fixture(params=["embedded", "airflow"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        rechecks = await stack.enter_async_context(recheck_site(MemoryDatabase(ManualClock()), tmp_path))
        await rechecks.trade()
        await rechecks.store.put_strategy(STRATEGY, StrategyBody(), ACCEPTED_AT)
        worker = rechecks.worker()
        if request.param == "embedded":
            wake = Wake()
            working = asyncio.create_task(worker.run(wake))
            yield Site(EmbeddedRunner(rechecks.store, wake), rechecks)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return
        airflow = await stack.enter_async_context(fake_airflow())
        airflow.start = lambda request_id: work_through(worker, rechecks.store, request_id)
        runner = AirflowRunner(AirflowClient(airflow.url, USER, PASSWORD, rechecks.metrics.rechecks), DAG)
        stack.push_async_callback(runner.close)
        yield Site(runner, rechecks)


async def test_a_request_has_one_run_however_often_it_is_submitted(site: Site) -> None:
    request = await site.stored()
    runs = await asyncio.gather(*(site.runner.submit(request) for _ in range(5)))
    assert {run.run_id for run in runs} == {REQUEST}

    async def has_ended() -> bool:
        return (await site.runner.run(REQUEST)).state == "succeeded"

    await until(has_ended)
    assert (await site.runner.submit(request)).state == "succeeded"
    page = await site.store.items(REQUEST, 0, 10)
    assert page is not None and [item.attempts for item in page.items] == [1]
    assert page.stored.progress.state == "succeeded"


async def test_a_request_that_was_never_submitted_has_no_run(site: Site) -> None:
    run = await site.runner.run("01J8TPZ7YJ1E1X4C5N9ZP3M3QZ")
    assert (run.state, run.run_id) == ("missing", "01J8TPZ7YJ1E1X4C5N9ZP3M3QZ")


async def test_several_requests_run_to_their_ends(site: Site) -> None:
    ids = [f"01J8TPZ7YJ1E1X4C5N9ZP3M3{number}" for number in ("Q1", "Q2", "Q3")]
    for request_id in ids:
        await site.runner.submit(await site.stored(request_id))

    async def have_ended() -> bool:
        return {(await site.runner.run(request_id)).state for request_id in ids} == {"succeeded"}

    await until(have_ended, seconds_max=timedelta(minutes=1).total_seconds())
