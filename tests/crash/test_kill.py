"""SIGKILL under load, several times: every acknowledged order exists once and reaches its end."""

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.cluster import Cluster
from tests.support.evidence import audit_lines, check_audit
from tests.support.exactly_once import check_acknowledged
from tests.support.load import LoadClient, check_ends, until_sending
from tests.support.orders import get, until_all_final
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.process import Process

ROUNDS = 5
# What an order reserves is for the limits; streams show the order as its client placed it.
NOT_IN_STREAMS = {"currency", "multiplier", "reservePrice", "reducing"}


class StreamReader:
    """Reads the account's stream across restarts and resumes it with Last-Event-ID."""

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


async def test_a_process_killed_several_times_under_load_loses_and_doubles_nothing(
    cluster: Cluster, engine_settings: dict[str, str], session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    process = await cluster.process(**engine_settings).start()
    chance = random.Random(20260105)
    client, reader = LoadClient(process), StreamReader(process)
    reading = asyncio.create_task(reader.run())
    for _ in range(ROUNDS):
        stop = asyncio.Event()
        load = asyncio.create_task(client.load(stop))
        await until_sending(process)
        await asyncio.sleep(chance.uniform(0.0, 0.4))  # a different moment of each round
        process.kill()
        stop.set()
        await load
        await process.start()
    # Repeats settle the orders without an acknowledgement, and must return the same order for some of the others.
    await client.insist([*client.unknown, *list(client.acknowledged)[:200]])
    orders = await until_all_final(session, process)
    check_acknowledged(client, orders)
    check_ends(orders)
    await until_read(reader, process, session)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    check_stream(reader, process)
    await check_audit(process, tmp_path)


async def until_read(reader: StreamReader, process: Process, session: aiohttp.ClientSession) -> None:
    """Wait until the audit file and the stream have the account's newest event."""
    newest = (await get(session, process, "/accounts/demo/events?limit=1"))["events"][-1]["seq"]
    await until(lambda: bool(lines := audit_lines(process)) and lines[-1]["seq"] >= newest)
    last = [event["seq"] for event in audit_lines(process) if event["accountId"] == "demo"][-1]
    await until(lambda: bool(reader.messages) and reader.messages[-1][0] >= last)


def check_stream(reader: StreamReader, process: Process) -> None:
    """Assert that the stream had every event of the account once, from its first message on."""
    journal = [event for event in audit_lines(process) if event["accountId"] == "demo"]
    expected = [
        (event["seq"], "execution_report" if event["type"] == "ExecutionReport" else "order_update")
        for event in journal
        if event["seq"] >= reader.messages[0][0]
    ]
    assert [(number, event) for number, event, _ in reader.messages] == expected
    # Messages add what earlier events have said to what the event itself says.
    by_seq = {event["seq"]: event for event in journal}
    for number, event, data in reader.messages:
        line = by_seq[number]
        said = line["data"] if event == "execution_report" else line["data"]["order"]
        assert data["orderId"] == line["orderId"]
        shown = {name: value for name, value in said.items() if name not in NOT_IN_STREAMS}
        assert {name: data[name] for name in shown} == shown
