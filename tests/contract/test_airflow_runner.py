"""Airflow that is down, slow, paused, restarted or surprising: nothing is lost, and no request has two runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from switchyard.adapters.airflow import client as client_module
from switchyard.adapters.airflow.client import ANSWER_BYTES_MAX, AirflowClient
from switchyard.adapters.airflow.runner import AirflowRunner
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.domain.errors import RunnerDown
from switchyard.domain.strategies.registry import StrategyBody
from switchyard.domain.strategies.requests import Tally
from switchyard.flow.pdca.worker import ENDED_GRACE, Dispatch
from switchyard.ports.strategies import RunConflict, StoredRequest
from switchyard.settings.parse import Secret
from switchyard.telemetry.metrics import Metrics
from tests.support.airflow import DAG, PASSWORD, USER, FakeAirflow, fake_airflow
from tests.support.memory.clock import ManualClock
from tests.support.pdca import NOW, a_recheck, strategy_key
from tests.support.ports import free_port

REQUEST = "01J8TPZ7YJ1E1X4C5N9ZP3M3QA"
QUEUED_MAX = timedelta(minutes=15)
Fault = Callable[[str], Awaitable[web.StreamResponse | None]]


class Site:
    """A dispatch stage, its store and its Airflow."""

    def __init__(self, airflow: FakeAirflow, store: SqlPdcaStore) -> None:
        self.airflow = airflow
        self.store = store
        self.clock = ManualClock(NOW)
        self.metrics = Metrics()
        # As from the settings, where the password is masked.
        self.client = AirflowClient(airflow.url, USER, Secret(PASSWORD), self.metrics.rechecks)
        self.runner = AirflowRunner(self.client, DAG)
        self.dispatch = Dispatch(
            store,
            store,
            self.runner,
            clock=self.clock,
            metrics=self.metrics.rechecks,
            queued_max=QUEUED_MAX,
        )
        self.request = a_recheck(REQUEST, runner="airflow")

    async def stored(self) -> StoredRequest:
        found = await self.store.request(REQUEST)
        assert found is not None
        return found

    def count(self, endpoint: str, outcome: str) -> float:
        labels = {"endpoint": endpoint, "outcome": outcome}
        return self.metrics.registry.get_sample_value("airflow_adapter_requests_total", labels) or 0.0

    def gauge(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(name) or 0.0


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    store = await SqlPdcaStore.on_file(tmp_path / "pdca.db")
    async with fake_airflow() as airflow:
        site = Site(airflow, store)
        await store.put_strategy(strategy_key("one"), StrategyBody(), NOW)
        await store.create(site.request, "key", "digest", ["one"])
        yield site
        await site.runner.close()
    await store.close()


def answers(endpoint: str, answer: Callable[[], web.StreamResponse]) -> Fault:
    async def fault(asked: str) -> web.StreamResponse | None:
        return answer() if asked == endpoint else None

    return fault


async def test_a_run_is_triggered_once_and_followed(site: Site) -> None:
    await site.dispatch.submit(site.request)
    await site.dispatch.submit(site.request)
    run = (await site.stored()).run
    assert (run.run_id, run.run_state, run.submitted_at, run.tries) == (REQUEST, "queued", NOW, 1)
    assert site.airflow.runs[REQUEST]["conf"] == {"request_id": REQUEST}
    assert site.airflow.requests["trigger"] == 1
    site.airflow.runs[REQUEST]["state"] = "running"
    assert await site.dispatch.run_once() == 1
    assert (await site.stored()).run.run_state == "running"
    assert site.count("trigger", "ok") == site.count("token", "ok") == 1


async def test_an_expired_token_is_renewed_once(site: Site) -> None:
    await site.dispatch.submit(site.request)
    site.airflow.valid_tokens.clear()  # as after a restart with a new key
    await asyncio.gather(site.runner.run(REQUEST), site.runner.run(REQUEST))
    assert site.airflow.requests["token"] == 2
    site.airflow.valid_tokens.clear()
    site.airflow.gives_tokens = False
    with pytest.raises(RunnerDown, match="PDCA_AIRFLOW_PASSWORD"):
        await site.runner.run(REQUEST)
    assert site.airflow.requests["token"] == 3


async def test_a_run_that_exists_counts_only_with_the_same_conf(site: Site) -> None:
    run = {"dag_run_id": REQUEST, "state": "running", "conf": {"request_id": REQUEST}}
    site.airflow.runs[REQUEST] = run
    assert (await site.runner.submit(site.request)).state == "running"
    run["conf"] = {"request_id": "another"}
    with pytest.raises(RunConflict, match="another conf"):
        await site.runner.submit(site.request)
    await site.dispatch.run_once()
    page = await site.store.items(REQUEST, 0, 10)
    assert page is not None and page.items[0].error is not None
    assert page.items[0].error.code == "RUN_CONFLICT"
    assert await site.store.unfinished("airflow", submitted=False) == []


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [("paused", True, "is paused"), ("has_dag", False, "has no DAG"), ("stale", True, "has no DAG")],
)
async def test_a_dag_that_would_never_run_is_told_and_not_triggered(
    site: Site, attribute: str, value: bool, words: str
) -> None:
    setattr(site.airflow, attribute, value)
    with pytest.raises(RunnerDown, match=words):
        await site.dispatch.submit(site.request)
    assert site.airflow.requests["trigger"] == 0
    setattr(site.airflow, attribute, not value)
    await site.dispatch.run_once()
    assert list(site.airflow.runs) == [REQUEST]


async def test_nothing_is_lost_while_airflow_is_down(site: Site) -> None:
    down = AirflowRunner(AirflowClient(f"http://127.0.0.1:{free_port()}", USER, PASSWORD, site.metrics.rechecks), DAG)
    metrics = site.metrics.rechecks
    dispatch = Dispatch(site.store, site.store, down, clock=site.clock, metrics=metrics, queued_max=QUEUED_MAX)
    with pytest.raises(RunnerDown):
        await dispatch.submit(site.request)
    with pytest.raises(RunnerDown):
        await dispatch.run_once()
    await down.close()
    run = (await site.stored()).run
    assert (run.submitted_at, run.tries) == (None, 2)
    assert run.error is not None and "PDCA_AIRFLOW_URL" in run.error
    assert (site.gauge("pdca_runs_not_submitted"), site.count("token", "down")) == (1, 2)
    # It is back: the request goes there without a repeat of the caller's.
    await site.dispatch.run_once()
    assert ((await site.stored()).run.run_state, (await site.stored()).run.error) == ("queued", None)
    assert site.gauge("pdca_runs_not_submitted") == 0


async def test_a_trigger_whose_answer_was_lost_is_found_by_the_next_one(site: Site) -> None:
    site.airflow.fault_after = answers("trigger", lambda: web.Response(status=502))
    with pytest.raises(RunnerDown, match="502"):
        await site.dispatch.submit(site.request)
    assert (await site.stored()).run.submitted_at is None and list(site.airflow.runs) == [REQUEST]
    site.airflow.fault_after = None
    await site.dispatch.run_once()
    assert (await site.stored()).run.submitted_at is not None
    assert len(site.airflow.runs) == 1 and site.count("trigger", "conflict") == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(status=200, text="<html>"),
        lambda: web.Response(status=200, text="[]"),
        lambda: web.Response(status=200, body=b'{"dag_run_id":"\xff"}'),
        lambda: web.Response(status=200, text="[" * 100_000),
        lambda: web.Response(status=200, text='{"dag_run_id":"another","state":"queued"}'),
        lambda: web.Response(status=200, text=f'{{"dag_run_id":"{REQUEST}","state":"dreaming"}}'),
        lambda: web.Response(status=200, text=" " * (ANSWER_BYTES_MAX + 1)),
        lambda: web.Response(status=422, text='{"detail":"no"}'),
        lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
    ],
)
async def test_an_answer_that_cannot_be_understood_decides_nothing(
    site: Site, answer: Callable[[], web.Response]
) -> None:
    site.airflow.fault = answers("trigger", answer)
    with pytest.raises(RunnerDown):
        await site.dispatch.submit(site.request)
    stored = await site.stored()
    assert (stored.run.submitted_at, stored.progress.state) == (None, "queued")


async def test_an_airflow_that_does_not_answer_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "REQUEST_SECONDS_MAX", 0.2)

    async def hang(_endpoint: str) -> None:
        await asyncio.Event().wait()

    site.airflow.fault = hang
    with pytest.raises(RunnerDown, match="TimeoutError"):
        await site.dispatch.submit(site.request)
    assert site.count("token", "down") == 1


async def test_a_run_that_stays_in_the_queue_is_alarmed_until_it_runs(site: Site) -> None:
    await site.dispatch.submit(site.request)
    site.clock.advance(QUEUED_MAX - timedelta(seconds=1))
    await site.dispatch.run_once()
    assert site.gauge("pdca_runs_queued_too_long") == 0
    site.clock.advance(timedelta(seconds=2))
    await site.dispatch.run_once()
    assert site.gauge("pdca_runs_queued_too_long") == 1
    site.airflow.runs[REQUEST]["state"] = "running"
    await site.dispatch.run_once()
    assert site.gauge("pdca_runs_queued_too_long") == 0


async def test_a_failed_run_fails_what_it_left_and_a_deleted_one_is_triggered_again(site: Site) -> None:
    await site.dispatch.submit(site.request)
    del site.airflow.runs[REQUEST]
    await site.dispatch.run_once()
    assert list(site.airflow.runs) == [REQUEST]
    # Somebody marks it as a success though nothing was rechecked: after a moment of grace that is an error.
    site.airflow.runs[REQUEST]["state"] = "success"
    await site.dispatch.run_once()
    assert (await site.stored()).progress.state == "queued"
    site.clock.advance(ENDED_GRACE)
    await site.dispatch.run_once()
    stored = await site.stored()
    assert (stored.progress.failed, stored.progress.state) == (1, "failed")
    assert await site.dispatch.run_once() == 0


async def test_a_failed_run_is_the_end_at_once(site: Site) -> None:
    await site.dispatch.submit(site.request)
    site.airflow.runs[REQUEST]["state"] = "failed"
    await site.dispatch.run_once()
    page = await site.store.items(REQUEST, 0, 10)
    assert page is not None and page.items[0].error is not None
    assert (page.items[0].error.code, page.stored.progress.state) == ("RUN_FAILED", "failed")
    # The alert on failed rechecks looks at this count.
    assert await site.store.tally() == Tally(succeeded=0, failed=1)
