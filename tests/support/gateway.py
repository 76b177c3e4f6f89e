"""A gateway with its stages in the test's own process, on a real socket and a real database."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp

from switchyard.bootstrap import Database, Engine, PortWrappers, running_engine, upgrade_if_new
from switchyard.entrypoints.control.office import running_office
from switchyard.entrypoints.http.app import build_server
from switchyard.entrypoints.http.transport.auth import issue_token
from switchyard.entrypoints.http.transport.guard import ConnectionCaps
from switchyard.settings import load_settings
from tests.support.contract import Contract
from tests.support.polling import until
from tests.support.process import SECRET, clean_environment


class CheckedResponse:
    """A complete response that matches contracts/openapi.yaml."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningGateway:
    """The client of a gateway; it checks every response against contracts/openapi.yaml."""

    def __init__(
        self, engine: Engine, database: Database, caps: ConnectionCaps, url: str, session: aiohttp.ClientSession
    ) -> None:
        self.engine = engine
        self.database = database
        self.caps = caps
        self.url = url
        self._session = session
        self._contract = Contract()

    def token(self, account: str = "demo", *, scopes: Sequence[str] = (), subject: str | None = None) -> str:
        return issue_token(
            SECRET, account, clock=self.engine.clock, ttl=timedelta(hours=1), scopes=scopes, subject=subject
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        account: str | None = "demo",
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        check: bool = True,
    ) -> CheckedResponse:
        sent = dict(headers or {})
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        if account is not None:
            sent.setdefault("Authorization", f"Bearer {self.token(account)}")
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        async with self._session.request(method, self.url + path, data=data, headers=sent) as response:
            complete = CheckedResponse(response.status, response.headers.copy(), await response.read())
        if check:
            self._contract.check(method, path, complete.status, complete.headers, complete.body)
        return complete

    async def get(self, path: str, account: str | None = "demo") -> CheckedResponse:
        return await self.request("GET", path, account=account)

    async def place(self, key: str | None = None, account: str | None = "demo", **changes: Any) -> CheckedResponse:
        body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000, **changes}
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.request("POST", "/orders", account=account, body=body, headers=headers)

    async def order(self, order_id: str, account: str = "demo") -> Any:
        return (await self.get(f"/orders/{order_id}", account)).json

    async def until_status(self, order_id: str, *statuses: str, account: str = "demo") -> Any:
        """Wait until the order has one of the statuses; returns its snapshot."""
        snapshot: dict[str, Any] = {}

        async def is_reached() -> bool:
            snapshot.update(await self.order(order_id, account))
            return snapshot["status"] in statuses

        await until(is_reached, lambda: f"{snapshot}")
        return snapshot

    async def journal_seq(self) -> int:
        return await self.engine.hub.head()


class KeepsDatabase(PortWrappers):
    """Lets a test use the database of a running engine."""

    opened: Database

    def database(self, database: Database) -> Database:
        self.opened = database
        return database


@asynccontextmanager
async def running_gateway(folder: Path, **environment: str) -> AsyncIterator[RunningGateway]:
    """Run everything that `switchyard up` runs."""
    environment = {
        "SWITCHYARD_DATA_DIR": str(folder / "var"),
        "SWITCHYARD_STATE_DIR": str(folder / "state"),
        "SWITCHYARD_PORT": "0",
        "SWITCHYARD_BACKOFFICE": "false",
        "JWT_HS256_SECRET": SECRET,
        **environment,
    }
    settings = load_settings(environment)
    await upgrade_if_new(settings)
    wrappers = KeepsDatabase()
    async with (
        running_engine(settings, "up", wrappers) as engine,
        running_office(engine, clean_environment(**environment)),
    ):
        server = build_server(settings, engine)
        await server.start()
        try:
            async with aiohttp.ClientSession() as session:
                yield RunningGateway(engine, wrappers.opened, server.caps, f"http://127.0.0.1:{server.port}", session)
        finally:
            engine.hub.close()
            await server.stop(grace_seconds=5.0)
