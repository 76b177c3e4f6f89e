"""The contract of `Runner`: embedded and Airflow. `make test-airflow` adds a real Airflow."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from switchyard.adapters.airflow.client import AirflowClient
from switchyard.adapters.airflow.runner import AirflowRunner
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.bootstrap.pdca import work_through
from switchyard.domain.errors import RunnerDown
from switchyard.domain.strategies.registry import StrategyBody
from switchyard.domain.strategies.requests import RecheckRequest
from switchyard.flow.clock import Wake
from switchyard.flow.pdca.worker import EmbeddedRunner
from switchyard.ports.strategies import Run, Runner, RunState
from tests.support.airflow import DAG, PASSWORD, USER, fake_airflow
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.pdca import a_recheck, strategy_key
from tests.support.polling import until
from tests.support.recheck_site import ACCEPTED_AT, STRATEGY, recheck_site

REQUEST = "01J8TPZ7YJ1E1X4C5N9ZP3M3QA"
# A real Airflow takes seconds to start a task.
SECONDS_MAX = 180.0


class Site:
    """A runner with what carries its runs out."""

    def __init__(self, runner: Runner, store: SqlPdcaStore, accepted_at: datetime) -> None:
        self.runner = runner
        self.store = store
        self._accepted_at = accepted_at

    async def submitted(self, request: RecheckRequest) -> Run:
        """Submit as the dispatch does: a runner that does not answer in time is asked again."""
        run: Run | None = None

        async def is_taken() -> bool:
            nonlocal run
            with contextlib.suppress(RunnerDown):
                run = await self.runner.submit(request)
            return run is not None

        await until(is_taken, seconds_max=SECONDS_MAX, pause_seconds=0.1)
        assert run is not None
        return run

    async def state(self, request_id: str) -> RunState | None:
        """The state of a run; none where the runner does not answer in time, as the dispatch has it."""
        try:
            return (await self.runner.run(request_id)).state
        except RunnerDown:
            return None

    async def stored(self, request_id: str = REQUEST) -> RecheckRequest:
        request = msgspec.structs.replace(
            a_recheck(request_id, created_at=self._accepted_at, dry_run=True), runner=self.runner.name
        )
        await self.store.create(request, request_id, "digest", [STRATEGY])
        return request


@pytest.fixture(params=["embedded", "airflow"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        rechecks = await stack.enter_async_context(recheck_site(MemoryDatabase(ManualClock()), tmp_path))
        await rechecks.trade()
        await rechecks.store.put_strategy(strategy_key(STRATEGY), StrategyBody(), ACCEPTED_AT)
        worker = rechecks.worker()
        if request.param == "embedded":
            wake = Wake()
            working = asyncio.create_task(worker.run(wake))
            yield Site(EmbeddedRunner(rechecks.store, wake), rechecks.store, ACCEPTED_AT)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return
        airflow = await stack.enter_async_context(fake_airflow())
        airflow.start = lambda request_id: work_through(worker, rechecks.store, request_id)
        runner = AirflowRunner(AirflowClient(airflow.url, USER, PASSWORD, rechecks.metrics.rechecks), DAG)
        stack.push_async_callback(runner.close)
        yield Site(runner, rechecks.store, ACCEPTED_AT)


async def test_a_request_has_one_run_however_often_it_is_submitted(site: Site) -> None:
    request = await site.stored()
    runs = await asyncio.gather(*(site.submitted(request) for _ in range(5)))
    assert {run.run_id for run in runs} == {REQUEST}

    async def has_ended() -> bool:
        return await site.state(REQUEST) == "succeeded"

    await until(has_ended, seconds_max=SECONDS_MAX, pause_seconds=0.05)
    assert (await site.submitted(request)).state == "succeeded"
    page = await site.store.items(REQUEST, 0, 10)
    assert page is not None and [item.attempts for item in page.items] == [1]
    assert page.stored.progress.state == "succeeded"


async def test_a_request_that_was_never_submitted_has_no_run(site: Site) -> None:
    run = await site.runner.run("01J8TPZ7YJ1E1X4C5N9ZP3M3QZ")
    assert (run.state, run.run_id) == ("missing", "01J8TPZ7YJ1E1X4C5N9ZP3M3QZ")


async def test_several_requests_run_to_their_ends(site: Site) -> None:
    ids = [f"01J8TPZ7YJ1E1X4C5N9ZP3M3{number}" for number in ("Q1", "Q2", "Q3")]
    for request_id in ids:
        await site.submitted(await site.stored(request_id))

    async def have_ended() -> bool:
        return {await site.state(request_id) for request_id in ids} == {"succeeded"}

    await until(have_ended, seconds_max=SECONDS_MAX, pause_seconds=0.05)
