"""Runs of rechecks at Airflow: the run of a request has the request's id, so that no repeat makes a second one."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from switchyard.adapters.airflow.client import AirflowClient, Answer
from switchyard.domain.errors import RunnerDown
from switchyard.domain.strategies.requests import RecheckRequest, RunnerName
from switchyard.ports.strategies import Run, RunConflict, RunState

# Within the 10 s that a caller of the API waits at most.
SUBMIT_SECONDS_MAX: Final = 8.0
_STATES: Final[Mapping[str, RunState]] = {
    "queued": "queued",
    "running": "running",
    "success": "succeeded",
    "failed": "failed",
}


class AirflowRunner:
    """ports.strategies.Runner over one DAG."""

    name: RunnerName = "airflow"

    def __init__(self, client: AirflowClient, dag_id: str) -> None:
        self._client = client
        self._dag_id = dag_id

    async def submit(self, request: RecheckRequest) -> Run:
        """Trigger the DAG with the request's id, or find the run that has it."""
        try:
            async with asyncio.timeout(SUBMIT_SECONDS_MAX):
                await self._check_dag()
                return await self._trigger(request)
        except TimeoutError:
            raise RunnerDown(f"Airflow did not take the run within {SUBMIT_SECONDS_MAX:g} s") from None

    async def run(self, request_id: str) -> Run:
        """The run of a request."""
        answer = await self._client.get("run", "dags", self._dag_id, "dagRuns", request_id)
        if answer.status == 404:
            return Run(request_id, "missing", "missing")
        return _run(request_id, answer)

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    async def _check_dag(self) -> None:
        """Raise RunnerDown unless the DAG can run: Airflow accepts runs of a paused DAG and never starts them."""
        answer = await self._client.get("dag", "dags", self._dag_id)
        dag = answer.body if isinstance(answer.body, dict) else {}
        if answer.status == 404 or dag.get("is_stale") is True:
            raise RunnerDown(f"Airflow has no DAG {self._dag_id}: copy ops/airflow/dags into its folder of DAGs")
        if answer.status != 200:
            raise RunnerDown(f"Airflow answered {answer.status} about the DAG {self._dag_id}")
        if dag.get("is_paused") is not False:
            raise RunnerDown(f"the DAG {self._dag_id} is paused at Airflow: unpause it")

    async def _trigger(self, request: RecheckRequest) -> Run:
        conf = {"request_id": request.request_id}
        answer = await self._client.post(
            "trigger",
            "dags",
            self._dag_id,
            "dagRuns",
            # Without a logical date: two runs may not share one, and requests may come in the same microsecond.
            body={"dag_run_id": request.request_id, "logical_date": None, "conf": conf},
        )
        if answer.status == 409:
            answer = await self._client.get("run", "dags", self._dag_id, "dagRuns", request.request_id)
            if answer.status == 404:
                raise RunnerDown("Airflow says both that it has the run and that it does not")
            found = answer.body.get("conf") if isinstance(answer.body, dict) else None
            if answer.status == 200 and found != conf:
                raise RunConflict(
                    f"Airflow has a run {request.request_id} of {self._dag_id} with another conf: {_short(found)}"
                )
        return _run(request.request_id, answer)


def _run(request_id: str, answer: Answer) -> Run:
    body: Any = answer.body
    if answer.status != 200 or not isinstance(body, dict) or body.get("dag_run_id") != request_id:
        raise RunnerDown(f"Airflow answered {answer.status} about the run {request_id}: {_short(body)}")
    word = str(body.get("state"))
    state = _STATES.get(word)
    if state is None:
        raise RunnerDown(f"Airflow has the run {request_id} in the state {_short(word)}, which is not known here")
    return Run(request_id, state, word)


def _short(value: object) -> str:
    """At most a line of an answer, for a message."""
    return ascii(value)[:200]
