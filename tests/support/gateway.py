"""A whole gateway in the test's own process, on a real socket and a real engine."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp

from switchyard.bootstrap import Engine, running_engine, upgrade_if_new
from switchyard.entrypoints.http.app import build_gateway
from switchyard.entrypoints.http.transport.auth import issue_token
from switchyard.entrypoints.http.transport.server import HttpServer
from switchyard.settings import load_settings
from tests.support.contract import Contract
from tests.support.process import SECRET, until


class Answer:
    """A response, read to its end and already checked against the contract."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningGateway:
    """What a test talks to; every answer is held against contracts/openapi.yaml."""

    def __init__(self, engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.url = url
        self._session = session
        self._contract = Contract()

    def token(self, account: str = "demo") -> str:
        return issue_token(SECRET, account, clock=self.engine.clock, ttl=timedelta(hours=1))

    async def request(
        self,
        method: str,
        path: str,
        *,
        account: str | None = "demo",
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        check: bool = True,
    ) -> Answer:
        sent = dict(headers or {})
        if account is not None:
            sent.setdefault("Authorization", f"Bearer {self.token(account)}")
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        async with self._session.request(method, self.url + path, data=data, headers=sent) as response:
            answer = Answer(response.status, response.headers.copy(), await response.read())
        if check:
            self._contract.check(method, path, answer.status, answer.headers, answer.body)
        return answer

    async def get(self, path: str, account: str | None = "demo") -> Answer:
        return await self.request("GET", path, account=account)

    async def place(self, key: str | None = None, account: str | None = "demo", **changes: Any) -> Answer:
        body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000, **changes}
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.request("POST", "/orders", account=account, body=body, headers=headers)

    async def order(self, order_id: str, account: str = "demo") -> Any:
        return (await self.get(f"/orders/{order_id}", account)).json

    async def until_status(self, order_id: str, *statuses: str) -> Any:
        """The order's snapshot once it has one of the statuses."""
        found: dict[str, Any] = {}

        async def reached() -> bool:
            found.update(await self.order(order_id))
            return found["status"] in statuses

        await until(reached)
        return found

    async def journal_seq(self) -> int:
        return await self.engine.hub.head()


@asynccontextmanager
async def running_gateway(folder: Path, **environment: str) -> AsyncIterator[RunningGateway]:
    """Start everything that `switchyard up` starts."""
    settings = load_settings(
        {
            "SWITCHYARD_DATA_DIR": str(folder / "var"),
            "SWITCHYARD_STATE_DIR": str(folder / "state"),
            "SWITCHYARD_PORT": "0",
            "JWT_HS256_SECRET": SECRET,
            **environment,
        }
    )
    await upgrade_if_new(settings)
    async with running_engine(settings, "up") as engine:
        server = HttpServer(build_gateway(settings, engine), host=settings.host, port=settings.port)
        await server.start()
        try:
            async with aiohttp.ClientSession() as session:
                yield RunningGateway(engine, f"http://127.0.0.1:{server.port}", session)
        finally:
            engine.hub.close()
            await server.stop(grace_seconds=5.0)
