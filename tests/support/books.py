"""The back office of a process or of a gateway in the test, as its clients see it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from switchyard.bootstrap import BackOffice, running_backoffice
from switchyard.entrypoints.control.messages import ToOffice
from switchyard.entrypoints.control.office import OfficeLink, OfficeProcess, ParentLink
from switchyard.entrypoints.http.backoffice import build_backoffice
from tests.support.contract import Contract
from tests.support.gateway import CheckedResponse, RunningGateway
from tests.support.polling import until
from tests.support.process import Process

# What a process needs to keep the books as well; its port is `Process.backoffice_port`.
KEEPS_BOOKS = {"SWITCHYARD_BACKOFFICE": "true"}
_exact = msgspec.json.Encoder(decimal_format="number")


def office_pid(parent: int) -> int:
    """The process of the back office that this one has started."""
    [found] = [
        pid
        for task in Path(f"/proc/{parent}/task").iterdir()
        for pid in map(int, (task / "children").read_text().split())
        if {b"backoffice", b"child"} & set(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    ]
    return found


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
    """The back office that a gateway with KEEPS_BOOKS runs as its child process."""
    office = gateway.engine.office
    assert isinstance(office, OfficeProcess), "the gateway keeps no books"
    await until(lambda: office.problem is None, pause_seconds=0.02)
    assert office.url is not None
    yield RunningBackOffice(gateway, office.url)


class InnerBackOffice(RunningBackOffice):
    """A back office in the test's process, so that a test can look into it and change its parts."""

    def __init__(self, gateway: RunningGateway, url: str, parts: BackOffice) -> None:
        super().__init__(gateway, url)
        self.parts = parts


@asynccontextmanager
async def inner_backoffice(gateway: RunningGateway) -> AsyncIterator[InnerBackOffice]:
    """Run the back office as the child process of `up` does, but in this process: for a gateway without KEEPS_BOOKS."""
    engine = gateway.engine
    ours, theirs = socket.socketpair()
    link, parent = await OfficeLink.open(engine, ours, asyncio.Event()), await ParentLink.open(theirs)
    wakes = link.forward(engine.commits, None), link.forward(engine.pdca.rechecks, ToOffice(recheck=""))
    tasks = [asyncio.create_task(each) for each in (link.run(), parent.run(), *wakes)]
    try:
        async with running_backoffice(engine.settings, parent) as parts:
            server = build_backoffice(engine.settings, parts)
            await server.start()
            try:
                yield InnerBackOffice(gateway, f"http://127.0.0.1:{server.port}", parts)
            finally:
                await server.stop(grace_seconds=5.0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await link.close()
        await parent.close()
