"""The contract of `Runner` and the whole way of a recheck, with a real Airflow: `make test-airflow`.

Not part of `make test`, because Airflow needs an environment of its own.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from switchyard.adapters.airflow.client import AirflowClient
from switchyard.adapters.airflow.runner import AirflowRunner
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.errors import RunnerDown
from switchyard.domain.strategies.registry import StrategyBody
from switchyard.ports.strategies import RunConflict
from switchyard.telemetry.metrics import Metrics
from tests.contract.test_runners import (
    Site,
    test_a_request_has_one_run_however_often_it_is_submitted,
    test_a_request_that_was_never_submitted_has_no_run,
    test_several_requests_run_to_their_ends,
)
from tests.support.airflow import DAG, PASSWORD, USER
from tests.support.books import KEEPS_BOOKS
from tests.support.cluster import Cluster
from tests.support.pdca import strategy_key
from tests.support.polling import until
from tests.support.process import Process, run_command
from tests.support.real_airflow import RealAirflow
from tests.support.recheck_site import STRATEGY

__all__ = [
    "test_a_request_has_one_run_however_often_it_is_submitted",
    "test_a_request_that_was_never_submitted_has_no_run",
    "test_several_requests_run_to_their_ends",
]

pytestmark = pytest.mark.timeout(600)
RUN_SECONDS_MAX = 180.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    processes = Cluster(folder)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def airflow(folder: Path, cluster: Cluster) -> Iterator[RealAirflow]:
    """Airflow, whose tasks have the settings of the process `office`."""
    office = cluster.process(name="office", **KEEPS_BOOKS)
    airflow = RealAirflow(folder / "home", {**office.settings})
    airflow_settings = {
        "PDCA_RUNNER": "airflow",
        "PDCA_AIRFLOW_URL": airflow.url,
        "PDCA_AIRFLOW_USERNAME": USER,
        "PDCA_AIRFLOW_PASSWORD": PASSWORD,
    }
    office.settings.update(airflow_settings)
    try:
        yield airflow.start()
    finally:
        airflow.stop()


@pytest.fixture
async def office(airflow: RealAirflow, cluster: Cluster) -> Process:
    [office] = cluster._processes
    if not office.is_running:
        await office.start()
    return office


@pytest.fixture
async def site(airflow: RealAirflow, office: Process) -> AsyncIterator[Site]:
    store = await SqlPdcaStore.on_file(Path(office.settings["SWITCHYARD_DATA_DIR"]) / "pdca.db")
    await store.put_strategy(strategy_key(STRATEGY), StrategyBody(tags=("daily",)), SystemClock().now())
    runner = AirflowRunner(AirflowClient(airflow.url, USER, PASSWORD, Metrics().rechecks), DAG)
    yield Site(runner, store, SystemClock().now())
    await runner.close()
    await store.close()


async def test_a_paused_dag_is_told_and_a_foreign_run_is_a_conflict(site: Site, airflow: RealAirflow) -> None:
    request = await site.stored("01J8TPZ7YJ1E1X4C5N9ZP3M3R1")
    airflow.call("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": True})
    try:
        with pytest.raises(RunnerDown, match="is paused"):
            await site.runner.submit(request)
    finally:
        airflow.call("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": False})
    body = {"dag_run_id": "01J8TPZ7YJ1E1X4C5N9ZP3M3R2", "logical_date": None, "conf": {"request_id": "another"}}
    airflow.call("POST", f"/api/v2/dags/{DAG}/dagRuns", body)
    with pytest.raises(RunConflict):
        await site.runner.submit(msgspec.structs.replace(request, request_id=body["dag_run_id"]))


async def test_a_recheck_over_the_api_survives_an_airflow_that_is_down_and_a_cleared_task(
    site: Site, airflow: RealAirflow, office: Process, session: aiohttp.ClientSession
) -> None:
    token = run_command(
        "token", "--aud", "pdca", "--aud", "pdca.gui", "--scope", "pdca:recheck", "--scope", "pdca:read",
        **office.settings,
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {token.stdout.strip()}", "Idempotency-Key": "real-1"}
    body = {"strategies": [STRATEGY], "window": {"lookback_days": 14}, "reason": "manual", "dry_run": True}
    airflow.stop()
    async with session.post(f"{office.url}/pdca/recheck", json=body, headers=headers) as response:
        assert (response.status, (await response.json())["error"]) == (502, "AIRFLOW_DOWN")
    airflow.start()
    # The request was stored: a repeat finds it, and it runs whether or not there is one.
    async with session.post(f"{office.url}/pdca/recheck", json=body, headers=headers) as response:
        assert response.status == 202, await response.text()
        request_id = (await response.json())["request_id"]

    async def run_state() -> str:
        async with session.get(f"{office.url}/pdca/recheck/{request_id}", headers=headers) as response:
            shown = await response.json()
            return f"{shown['state']} {shown['runner']['run_state']}"

    async def has_ended() -> bool:
        return (await run_state()).startswith("succeeded")

    await until(has_ended, lambda: airflow.log[-3000:], seconds_max=RUN_SECONDS_MAX, pause_seconds=0.5)
    page = await site.store.items(request_id, 0, 10)
    assert page is not None and [item.attempts for item in page.items] == [1]

    async def has_succeeded() -> bool:
        return await site.state(request_id) == "succeeded"

    await until(has_succeeded, seconds_max=RUN_SECONDS_MAX, pause_seconds=0.5)
    airflow.call("POST", f"/api/v2/dags/{DAG}/dagRuns/{request_id}/clear", {"dry_run": False})

    async def runs_again() -> bool:
        return await site.state(request_id) in ("queued", "running")

    await until(runs_again, seconds_max=RUN_SECONDS_MAX, pause_seconds=0.1)
    await until(has_succeeded, lambda: airflow.log[-3000:], seconds_max=RUN_SECONDS_MAX, pause_seconds=0.5)
    again = await site.store.items(request_id, 0, 10)
    assert again is not None and again.items == page.items  # nothing was rechecked a second time
