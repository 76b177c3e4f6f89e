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

from tests.support.load import Client, all_final, check_ends
from tests.support.postgres import PostgresServer
from tests.support.process import DEADLINE_SECONDS, Process, run_command, until

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
        before = len(client.acknowledged)
        await until(lambda before=before: len(client.acknowledged) > before + 20)  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(0.0, 0.4))  # the moment of death is the one thing left to chance
        process.kill()
        stop.set()
        await load
    await process.start()
    async with aiohttp.ClientSession() as session:
        # Everything in doubt is settled by repeating it; everything acknowledged is repeated too.
        for key in [*client.unknown, *list(client.acknowledged)[:200]]:
            await client.post(session, key)
        assert not client.unknown
        orders = await all_final(session, process)
    assert {order["orderId"] for order in orders} == set(client.acknowledged.values())
    assert sorted(order["clientOrderId"] for order in orders) == sorted(client.acknowledged)
    check_ends(orders)
    await check_stream(process, reader, following)
    check_audit(process, tmp_path)


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


def audit_lines(process: Process) -> list[dict[str, Any]]:
    text = (process.folder / "var/gateway/audit.log").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def check_audit(process: Process, tmp_path: Path) -> None:
    """The file verifies, and a database rebuilt from it has the live state."""
    process.stop()
    settings = {name: value for name, value in process.settings.items() if name != "SWITCHYARD_PORT"}
    verified = run_command("audit", "verify", **settings)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    live = json.loads(run_command("db", "digest", "--json", **settings).stdout)
    rebuilt = run_command(
        "replay", str(tmp_path / "var/gateway/audit.log"), "--json", SWITCHYARD_DATA_DIR=str(tmp_path / "rebuilt")
    )
    assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
    assert json.loads(rebuilt.stdout)["digest"] == live["digest"]
