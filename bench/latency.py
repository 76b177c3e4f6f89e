"""Where the time of an order goes: until its answer, until a broker has it, and until its end is on the stream.

The broker is `venue-sim` on loopback with no idempotency and no lookup (class C). Orders are posted at a fixed rate;
each time counts from the moment at which the order was due. The broker notes its time once it has read an order.
"""

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from bench.load import MARKET_ORDER, RESPONSE_SECONDS_MAX, tokens
from bench.measure import WARM_UP_SECONDS, Bench
from bench.percentiles import percentile
from bench.processes import BenchError, free_port, serving
from bench.report import Part, server_name
from bench.tables import Section
from switchyard.domain.orders.lifecycle import FINAL

PER_SECOND = 100
FINAL_SECONDS_MAX = 30.0
HEADINGS = ("server", "from the request to", "orders per second", "p50 ms", "p99 ms")
CLASS_C = {"VENUE_DEDUPE_SIM": "none", "VENUE_LOOKUP_SIM": "none", "VENUE_WINDOW_SEC_SIM": "2"}


@dataclass(frozen=True)
class Stages:
    """The milliseconds of each order, by the stage that it had reached."""

    part: Part
    is_base: bool
    per_second: int
    took_ms: Mapping[str, Sequence[float]]
    rejected: int
    expired: int
    """Orders that ended before they were sent."""


@dataclass
class _Times:
    """Seconds since 1970 by order id."""

    due: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when another order has ended."""
    rejected: int = 0
    """Requests without an order; their latency is not in the table."""


class _Update(msgspec.Struct, rename="camel"):
    """What a stream tells about an order."""

    order_id: str = ""
    status: str = ""


def measure_stages(bench: Bench, part: Part, per_second: int, *, is_base: bool) -> Iterator[Stages]:
    """Post orders for a while and yield how long each stage took."""
    bearer = tokens(bench.secret)
    with bench.fresh(part, worker=True, is_base=is_base) as contender, ExitStack() as stack:
        folder, port = contender.folder / "venue", free_port()
        folder.mkdir()
        log = folder / "venue.jsonl"
        command = [contender.command[0], "venue-sim", "--port", str(port), "--log", str(log), "--dedupe", "none"]
        broker = stack.enter_context(serving(command, {}, folder, port))
        environment = {**contender.environment, "VENUE_URL_SIM": broker.url, **CLASS_C}
        server = stack.enter_context(replace(contender, environment=environment).serving())
        uvloop.run(_post(server.url, bearer, per_second, WARM_UP_SECONDS))
        times = uvloop.run(_post(server.url, bearer, per_second, bench.seconds))
        at_venue = _accepted_at(log)
    stages = {"the answer": times.answered, "the broker": at_venue, "the end on the stream": times.final}
    sent = {order_id: due for order_id, due in times.due.items() if order_id in at_venue}
    if not sent:
        raise BenchError(f"no order was sent: {len(times.due)} were accepted, {times.rejected} rejected")
    took_ms = {
        stage: [(reached[order_id] - due) * 1e3 for order_id, due in sent.items()] for stage, reached in stages.items()
    }
    yield Stages(part, is_base, per_second, took_ms, times.rejected, len(times.due) - len(sent))


def stages_section(measured: Sequence[Stages]) -> Section:
    rows = [
        (
            server_name(result.part, is_base=result.is_base),
            stage,
            f"{result.per_second:,}",
            *(f"{percentile(took_ms, percent):,.1f}" for percent in (50, 99)),
        )
        for result in measured
        for stage, took_ms in result.took_ms.items()
    ]
    notes = [
        f"{server_name(result.part, is_base=result.is_base)}: {result.rejected:,} requests were rejected, "
        f"{result.expired:,} orders ended unsent"
        for result in measured
        if result.rejected or result.expired
    ]
    return Section("Latency of an order to a broker on loopback", HEADINGS, rows, notes=notes)


async def _post(url: str, bearer: Sequence[str], per_second: int, seconds: int) -> _Times:
    """Post at the fixed rate without waiting for answers, until the end of each order is on its account's stream."""
    times, label = _Times(), secrets.token_hex(8)

    async def post(session: aiohttp.ClientSession, number: int, due: float) -> None:
        headers = {
            "Authorization": f"Bearer {bearer[number % len(bearer)]}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"{label}-{number}",
        }
        async with session.post("/orders", data=MARKET_ORDER, headers=headers) as response:
            answer = await response.text()
            if response.status != 202:
                times.rejected += 1
                return
        order_id = msgspec.json.decode(answer, type=_Update).order_id
        times.due[order_id], times.answered[order_id] = due, time.time()

    async with AsyncExitStack() as stack:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(sock_read=RESPONSE_SECONDS_MAX)
        session = await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector, timeout=timeout))
        for token in bearer:
            headers = {"Authorization": f"Bearer {token}"}
            stream = await stack.enter_async_context(session.get("/stream", headers=headers))
            following = asyncio.create_task(_follow(stream, times))
            stack.callback(following.cancel)
        started = time.time()
        async with asyncio.TaskGroup() as posts:
            for number in range(per_second * seconds):
                due = started + number / per_second
                await asyncio.sleep(max(0.0, due - time.time()))
                posts.create_task(post(session, number, due))
        try:
            async with asyncio.timeout(FINAL_SECONDS_MAX):
                while not times.due.keys() <= times.final.keys():
                    times.ended.clear()
                    await times.ended.wait()
        except TimeoutError:
            missing = len(times.due.keys() - times.final.keys())
            raise BenchError(f"the end of {missing} orders was not on a stream in {FINAL_SECONDS_MAX:.0f} s") from None
    return times


async def _follow(stream: aiohttp.ClientResponse, times: _Times) -> None:
    """Note when the end of an order is on the stream."""
    async for line in stream.content:
        if line.startswith(b"data: "):
            update = msgspec.json.decode(line.removeprefix(b"data: "), type=_Update)
            if update.order_id and update.status in FINAL:
                times.final.setdefault(update.order_id, time.time())
                times.ended.set()


def _accepted_at(log: Path) -> dict[str, float]:
    """When the broker had read each order, by order id; the trace id of an order is its id unless it has another."""
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    return {
        line["trace_id"]: datetime.fromisoformat(line["at"]).timestamp() for line in lines if line["event"] == "order"
    }
