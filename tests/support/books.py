"""The back office of a process or of an engine in the test, as its clients see it."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import aiohttp
import msgspec

from switchyard.entrypoints.http.backoffice import build_backoffice
from tests.support.contract import Contract
from tests.support.gateway import CheckedResponse, RunningGateway
from tests.support.process import Process

# What a process needs to keep the books as well; its port is `Process.backoffice_port`.
KEEPS_BOOKS = {"SWITCHYARD_BACKOFFICE": "true"}
_exact = msgspec.json.Encoder(decimal_format="number")


async def read_books(session: aiohttp.ClientSession, process: Process, path: str, account: str = "demo") -> Any:
    """The JSON body of a response that must be 200, with exact numbers."""
    async with session.get(process.backoffice_url + path, headers=process.headers(account)) as response:
        assert response.status == 200, await response.text()
        return json.loads(await response.read(), parse_float=Decimal, parse_int=Decimal)


class RunningBackOffice:
    """The client of a back office; it checks every response against contracts/openapi.yaml."""

    def __init__(self, gateway: RunningGateway, url: str) -> None:
        self._gateway = gateway
        self._contract = Contract()
        self.url = url

    async def enter(self, scopes: Sequence[str] = ("admin:ledger",), **body: Any) -> CheckedResponse:
        """Post an entry by a person."""
        token = self._gateway.token(scopes=list(scopes), subject="ann")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        wanted = {"accountId": "demo", "key": "k1", "reason": "a test", **body}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/admin/ledger", data=_exact.encode(wanted), headers=headers) as response,
        ):
            complete = CheckedResponse(response.status, response.headers.copy(), await response.read())
        self._contract.check("POST", "/admin/ledger", complete.status, complete.headers, complete.body)
        return complete

    async def get(self, path: str, account: str | None = "demo") -> CheckedResponse:
        headers = {} if account is None else {"Authorization": f"Bearer {self._gateway.token(account)}"}
        async with aiohttp.ClientSession() as session, session.get(self.url + path, headers=headers) as response:
            complete = CheckedResponse(response.status, response.headers.copy(), await response.read())
        self._contract.check("GET", path, complete.status, complete.headers, complete.body)
        return complete

    async def operate(self, method: str, path: str, body: dict[str, Any] | None = None) -> CheckedResponse:
        """A request of an operator whose token names ann."""
        token = self._gateway.token("operator", scopes=["admin:reconcile"], subject="ann")
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=headers, json=body) as response,
        ):
            complete = CheckedResponse(response.status, response.headers.copy(), await response.read())
        self._contract.check(method, path, complete.status, complete.headers, complete.body)
        return complete


@asynccontextmanager
async def running_backoffice_api(gateway: RunningGateway) -> AsyncIterator[RunningBackOffice]:
    """Serve the back office of an engine that keeps the books, on a free port."""
    engine = gateway.engine
    assert engine.backoffice is not None, "the engine keeps no books"
    server = build_backoffice(engine.settings, engine.backoffice)
    await server.start()
    try:
        yield RunningBackOffice(gateway, f"http://127.0.0.1:{server.port}")
    finally:
        await server.stop(grace_seconds=5.0)
