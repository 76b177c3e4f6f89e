"""Load on a server: as fast as it answers (wrk), or at a steady pace (aiohttp)."""

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
# Orders of one account and symbol leave in order, one after the other; one account alone would measure only that.
ACCOUNTS = 16
TOKEN_SECONDS = 3_600
# Longer than any honest answer takes, so that slow answers show in p99 rather than as errors.
ANSWER_SECONDS_MAX = 10
PACED_CONNECTIONS = 64
PACED_TICK_SECONDS = 0.01

# Both kinds of load post this very body.
ORDER = (
    '{"symbol":"USDJPY","side":"BUY","type":"LIMIT","qty":1000,"price":100.001,"timeInForce":"GTC","strategy":"bench"}'
)


class Load(msgspec.Struct, frozen=True):
    """What wrk saw."""

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
    """Where wrk is, or how to get it."""
    found = shutil.which("wrk")
    if found is None:
        raise BenchError("wrk is not on the PATH: install Debian's package `wrk` (apt-get install wrk)")
    return found


def tokens(secret: str) -> list[str]:
    """One bearer token per account, as a client would hold them."""
    expiry = int(time.time()) + TOKEN_SECONDS
    return [
        jwt.encode({"accountId": f"bench-{number:02}", "exp": expiry}, secret, algorithm="HS256")
        for number in range(ACCOUNTS)
    ]


def post_orders(url: str, bearer: Sequence[str], connections: int, seconds: int) -> Load:
    """Keep every connection busy with orders; anything but an acceptance spoils the measurement."""
    command = [find_wrk(), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", f"--timeout={ANSWER_SECONDS_MAX}s"]
    command += ["-s", str(SCRIPT), url, "--", secrets.token_hex(8), ORDER, *bearer]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
    measured = [line for line in ended.stdout.splitlines() if line.startswith(MARK)]
    if not measured:
        raise BenchError(f"wrk ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    load = msgspec.json.decode(measured[0].removeprefix(MARK), type=Load)
    if load.rejections or load.socket_errors or not load.answers:
        raise BenchError(f"not every order was accepted: {load}")
    return load


async def post_orders_steadily(url: str, bearer: Sequence[str], per_second: float, seconds: int) -> int:
    """Post at a pace that does not wait for answers, so that a slow server cannot slow its own load; counts them."""
    label = secrets.token_hex(8)
    headers = [{"Authorization": f"Bearer {token}", "Content-Type": "application/json"} for token in bearer]
    total = max(1, int(per_second * seconds))
    failures: list[str] = []

    async def post(session: aiohttp.ClientSession, number: int) -> None:
        key = {"Idempotency-Key": f"{label}-{number}"}
        try:
            async with session.post("/orders", data=ORDER, headers=headers[number % len(headers)] | key) as answer:
                text = await answer.text()
                if answer.status != 202:
                    failures.append(f"{answer.status} {text}")
        except (aiohttp.ClientError, TimeoutError) as error:
            failures.append(repr(error))

    connector = aiohttp.TCPConnector(limit=PACED_CONNECTIONS)
    patience = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
    async with (
        aiohttp.ClientSession(url, connector=connector, timeout=patience) as session,
        asyncio.TaskGroup() as posts,
    ):
        began = time.monotonic()
        sent = 0
        while sent < total:
            due = min(total, int((time.monotonic() - began) * per_second) + 1)
            for number in range(sent, due):
                posts.create_task(post(session, number))
            sent = due
            await asyncio.sleep(PACED_TICK_SECONDS)
    if failures:
        raise BenchError(f"{len(failures)} of {total} orders were not accepted, the first: {failures[0]}")
    return total
