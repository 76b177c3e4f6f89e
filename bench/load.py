"""Generates load on a server: closed loop with wrk, or at a fixed rate with aiohttp."""

import asyncio
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import jwt
import msgspec

from bench.processes import BenchError

SCRIPT = Path(__file__).parent / "wrk" / "orders.lua"
MARK = "MEASURED "
# Orders of one account and symbol are sent one after the other, so a single account would measure only that.
ACCOUNTS = 16
TOKEN_SECONDS = 3_600
# Longer than any response takes, so that slow responses appear in p99 and not as errors.
RESPONSE_SECONDS_MAX = 10
PACED_CONNECTIONS = 64
PACED_TICK_SECONDS = 0.01

# Both kinds of load post this body.
ORDER = (
    '{"symbol":"USDJPY","side":"BUY","type":"LIMIT","qty":1000,"price":100.001,"timeInForce":"GTC","strategy":"bench"}'
)


class Load(msgspec.Struct, frozen=True):
    """The result of a wrk run; the field names are those that `orders.lua` prints."""

    answers: int
    rejections: int
    socket_errors: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        return self.answers / self.seconds


def find_wrk() -> str:
    """Return the path of wrk; raises BenchError if it is not installed."""
    path = shutil.which("wrk")
    if path is None:
        raise BenchError("wrk is not on the PATH: install Debian's package `wrk` (apt-get install wrk)")
    return path


def tokens(secret: str) -> list[str]:
    """One bearer token per account."""
    expiry = int(time.time()) + TOKEN_SECONDS
    return [
        jwt.encode({"accountId": f"bench-{number:02}", "exp": expiry}, secret, algorithm="HS256")
        for number in range(ACCOUNTS)
    ]


def post_orders(url: str, bearer: Sequence[str], connections: int, seconds: int) -> Load:
    """Post orders on every connection without pause; raises BenchError if an order is not accepted."""
    command = [
        find_wrk(),
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "--latency",
        f"--timeout={RESPONSE_SECONDS_MAX}s",
    ]
    command += ["-s", str(SCRIPT), url, "--", secrets.token_hex(8), ORDER, *bearer]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
    results = [line for line in completed.stdout.splitlines() if line.startswith(MARK)]
    if not results:
        raise BenchError(f"wrk exited with {completed.returncode}:\n{completed.stdout}{completed.stderr}")
    load = msgspec.json.decode(results[0].removeprefix(MARK), type=Load)
    if load.rejections or load.socket_errors or not load.answers:
        raise BenchError(f"not every order was accepted: {load}")
    return load


async def post_orders_steadily(url: str, bearer: Sequence[str], per_second: float, seconds: int) -> int:
    """Post at a fixed rate without waiting for responses: a slow server gets the full load too. Returns the count."""
    label = secrets.token_hex(8)
    headers = [{"Authorization": f"Bearer {token}", "Content-Type": "application/json"} for token in bearer]
    total = max(1, int(per_second * seconds))
    failures: list[str] = []

    async def post(session: aiohttp.ClientSession, number: int) -> None:
        key = {"Idempotency-Key": f"{label}-{number}"}
        try:
            async with session.post("/orders", data=ORDER, headers=headers[number % len(headers)] | key) as response:
                text = await response.text()
                if response.status != 202:
                    failures.append(f"{response.status} {text}")
        except (aiohttp.ClientError, TimeoutError) as error:
            failures.append(repr(error))

    connector = aiohttp.TCPConnector(limit=PACED_CONNECTIONS)
    timeout = aiohttp.ClientTimeout(total=RESPONSE_SECONDS_MAX)
    async with (
        aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as posts,
    ):
        started = time.monotonic()
        sent = 0
        while sent < total:
            due = min(total, int((time.monotonic() - started) * per_second) + 1)
            for number in range(sent, due):
                posts.create_task(post(session, number))
            sent = due
            await asyncio.sleep(PACED_TICK_SECONDS)
    if failures:
        raise BenchError(f"{len(failures)} of {total} orders were not accepted, the first: {failures[0]}")
    return total
