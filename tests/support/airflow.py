"""A small HTTP server with the documented answers of Airflow 3's API v2, and faults to order.

`make test-airflow` runs the same suite against a real Airflow.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

DAG = "switchyard_recheck"
USER, PASSWORD = "switchyard", "a-password"


class FakeAirflow:
    """One DAG and its runs; `start` is what its scheduler does with a queued run."""

    def __init__(self) -> None:
        self.url = ""
        self.paused = False
        self.has_dag = True
        self.stale = False
        self.runs: dict[str, dict[str, Any]] = {}
        self.requests: Counter[str] = Counter()
        self.valid_tokens: set[str] = set()
        self.gives_tokens = True
        self.fault: Callable[[str], Awaitable[web.StreamResponse | None]] | None = None
        """Called with the endpoint before it answers; its answer goes first."""
        self.fault_after: Callable[[str], Awaitable[web.StreamResponse | None]] | None = None
        """The same, after the request has had its effect."""
        self.start: Callable[[str], Awaitable[None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/auth/token", self._token)
        app.router.add_get("/api/v2/dags/{dag}", self._dag)
        app.router.add_post("/api/v2/dags/{dag}/dagRuns", self._trigger)
        app.router.add_get("/api/v2/dags/{dag}/dagRuns/{run}", self._run)
        return app

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _token(self, request: web.Request) -> web.StreamResponse:
        return await self._answer("token", request, self._new_token)

    async def _new_token(self, request: web.Request) -> web.StreamResponse:
        if not self.gives_tokens or await request.json() != {"username": USER, "password": PASSWORD}:
            return _detail(401, "Invalid credentials")
        token = f"token-{self.requests['token']}"
        self.valid_tokens.add(token)
        return web.json_response({"access_token": token}, status=201)

    async def _dag(self, request: web.Request) -> web.StreamResponse:
        async def shown(_: web.Request) -> web.StreamResponse:
            if not self.has_dag or request.match_info["dag"] != DAG:
                return _detail(404, f"The Dag with ID: `{request.match_info['dag']}` was not found")
            return web.json_response({"dag_id": DAG, "is_paused": self.paused, "is_stale": self.stale})

        return await self._answer("dag", request, shown)

    async def _trigger(self, request: web.Request) -> web.StreamResponse:
        async def created(_: web.Request) -> web.StreamResponse:
            body = await request.json()
            assert set(body) == {"dag_run_id", "logical_date", "conf"} and body["logical_date"] is None, body
            run_id = body["dag_run_id"]
            if run_id in self.runs:
                detail = {"reason": "Unique constraint violation", "statement": "hidden", "orig_error": "hidden"}
                return _detail(409, detail)
            run = {"dag_run_id": run_id, "dag_id": DAG, "logical_date": None, "state": "queued", "conf": body["conf"]}
            self.runs[run_id] = run
            if self.start is not None and not self.paused:
                task = asyncio.create_task(self._execute(run_id))
                self._tasks.add(task)
            return web.json_response(run)

        return await self._answer("trigger", request, created)

    async def _execute(self, run_id: str) -> None:
        assert self.start is not None
        self.runs[run_id]["state"] = "running"
        await self.start(run_id)
        self.runs[run_id]["state"] = "success"

    async def _run(self, request: web.Request) -> web.StreamResponse:
        async def shown(_: web.Request) -> web.StreamResponse:
            run = self.runs.get(request.match_info["run"])
            return _detail(404, "The DagRun was not found") if run is None else web.json_response(run)

        return await self._answer("run", request, shown)

    async def _answer(
        self,
        endpoint: str,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        self.requests[endpoint] += 1
        if self.fault is not None and (answer := await self.fault(endpoint)) is not None:
            return answer
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if endpoint != "token" and token not in self.valid_tokens:
            return _detail(401, "Not authenticated")
        answer = await handler(request)
        if self.fault_after is not None and (instead := await self.fault_after(endpoint)) is not None:
            return instead
        return answer


def _detail(status: int, detail: object) -> web.Response:
    return web.Response(status=status, text=json.dumps({"detail": detail}), content_type="application/json")


@asynccontextmanager
async def fake_airflow() -> AsyncIterator[FakeAirflow]:
    """The server on a free port."""
    airflow = FakeAirflow()
    runner = web.AppRunner(airflow.app(), shutdown_timeout=0.1)  # a test may leave a request hanging
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        airflow.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield airflow
    finally:
        await airflow.stop()
        await runner.cleanup()
