"""SIGKILL under load, again and again: what was acknowledged is there, once, and comes to its end."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.evidence import audit_lines, check_audit
from tests.support.exactly_once import check_acknowledged
from tests.support.load import Client, all_final, check_ends, in_mid_send
from tests.support.postgres import PostgresServer
from tests.support.process import DEADLINE_SECONDS, Process, until

ROUNDS = 5


class StreamReader:
    """Follows the account's stream over all restarts by Last-Event-ID, like any careful client."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.messages: list[tuple[int, str, dict[str, Any]]] = []
        self.last_id: int | None = None

    async def run(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                await self._follow()
            await asyncio.sleep(0.02)

    async def _follow(self) -> None:
        headers = self.process.headers()
        if self.last_id is not None:
            headers["Last-Event-ID"] = str(self.last_id)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=DEADLINE_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as session,
            session.get(f"{self.process.url}/stream", headers=headers) as response,
        ):
            assert response.status == 200
            fields: dict[str, str] = {}
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "event" in fields:
                    self._take(fields)
                    fields = {}
                else:
                    fields = {}

    def _take(self, fields: dict[str, str]) -> None:
        if "id" in fields:
            self.last_id = int(fields["id"])
        assert fields["event"] != "resync_required", "the stream asked for a resync"
        if fields["event"] != "ready":
            self.messages.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))


@pytest.fixture(params=["sqlite", "postgres"])
async def process(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Process]:
    settings = {}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        settings["SWITCHYARD_DATABASE_URL"] = server.create_database()
    process = Process(tmp_path, **settings)
    yield process
    process.close()


async def test_killed_again_and_again_under_load_nothing_is_lost_or_doubled(process: Process, tmp_path: Path) -> None:
    chance = random.Random(20260105)
    client, reader = Client(process), StreamReader(process)
    following: asyncio.Task[None] | None = None
    for _ in range(ROUNDS):
        await process.start()
        if following is None:
            following = asyncio.create_task(reader.run())
        stop = asyncio.Event()
        load = asyncio.create_task(client.load(stop))
        await in_mid_send(process)
        await asyncio.sleep(chance.uniform(0.0, 0.4))  # the moment of death is the one thing left to chance
        process.kill()
        stop.set()
        await load
    await process.start()
    async with aiohttp.ClientSession() as session:
        # Everything in doubt is settled by repeating it; some of what was acknowledged is repeated too.
        await client.insist([*client.unknown, *list(client.acknowledged)[:200]])
        orders = await all_final(session, process)
    check_acknowledged(client, orders)
    check_ends(orders)
    await check_stream(process, reader, following)
    await check_audit(process, tmp_path)


async def check_stream(process: Process, reader: StreamReader, following: "asyncio.Task[None] | None") -> None:
    """No gap and no repeat: what was streamed is what the journal has for the account."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{process.url}/accounts/demo/events?limit=1", headers=process.headers()) as response,
    ):
        newest = (await response.json())["events"][-1]["seq"]
    await until(lambda: bool(lines := audit_lines(process)) and lines[-1]["seq"] >= newest)
    journal = [event for event in audit_lines(process) if event["accountId"] == "demo"]
    expected = [
        (event["seq"], "execution_report" if event["type"] == "ExecutionReport" else "order_update")
        for event in journal
        if event["seq"] > (reader.messages[0][0] - 1)
    ]
    await until(lambda: bool(reader.messages) and reader.messages[-1][0] >= expected[-1][0])
    assert following is not None
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert [(number, event) for number, event, _ in reader.messages] == expected
    by_seq = {event["seq"]: event["data"] for event in journal}
    for number, event, data in reader.messages:
        assert data == (by_seq[number] if event == "execution_report" else by_seq[number]["order"])
