"""`python -m bench.streams`: how much one account's unread streams slow the orders of another account.

One account holds many streams that it never reads and places orders, so that every order is sent to all of its streams.
Another account places orders at a fixed rate; the latency of its answers is the result.
"""

import argparse
import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import jwt
import uvloop

from bench.checkouts import this_checkout
from bench.contenders import switchyard
from bench.load import ORDER, RESPONSE_SECONDS_MAX, TOKEN_SECONDS
from bench.percentiles import percentile
from bench.processes import BenchError, serving

# Each order of the crowded account causes about five messages on each of its streams.
CROWDED_PER_SECOND = 50
OTHER_PER_SECOND = 100
CONNECTIONS = 16
STREAMS_AT_ONCE = 50


def main() -> int:
    """Measure without streams and with them, and print one line for each."""
    options = _options()
    secret = secrets.token_hex(32)
    checkout = this_checkout()
    extra = dict(item.split("=", 1) for item in options.set)
    with tempfile.TemporaryDirectory(prefix="switchyard-bench-") as folder:
        for streams in options.streams:
            place = Path(folder) / str(streams)
            place.mkdir()
            contender = switchyard(checkout, place, secret, None, worker=True)
            with serving(contender.command, {**contender.environment, **extra}, place, contender.port) as server:
                took_ms = uvloop.run(_measure(server.url, secret, streams, options.seconds))
            print(
                f"{streams:>5} unread streams: {len(took_ms)} orders of another account, "
                f"p50 {statistics.median(took_ms):.1f} ms, p99 {percentile(took_ms, 99):.1f} ms, "
                f"max {max(took_ms):.1f} ms",
                flush=True,
            )
    return 0


async def _measure(url: str, secret: str, streams: int, seconds: int) -> list[float]:
    async with AsyncExitStack() as stack:
        for first in range(0, streams, STREAMS_AT_ONCE):
            count = min(STREAMS_AT_ONCE, streams - first)
            opened = await asyncio.gather(*[_unread_stream(url, _token(secret, "crowded")) for _ in range(count)])
            for reader, writer in opened:
                stack.callback(_close, reader, writer)
        await _check_streams(url, streams)
        connector = aiohttp.TCPConnector(limit=CONNECTIONS)
        timeout = aiohttp.ClientTimeout(total=RESPONSE_SECONDS_MAX)
        session = await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector, timeout=timeout))
        _, took_ms = await asyncio.gather(
            _post_steadily(session, _token(secret, "crowded"), CROWDED_PER_SECOND, seconds),
            _post_steadily(session, _token(secret, "other"), OTHER_PER_SECOND, seconds),
        )
        return took_ms


async def _unread_stream(url: str, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream and stop reading at once: with a limit of one byte the reader pauses the transport."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1)
    writer.write(f"GET /stream HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    status = await reader.readexactly(15)
    if status != b"HTTP/1.1 200 OK":
        raise BenchError(f"a stream was rejected: {status!r}")
    return reader, writer


async def _check_streams(url: str, streams: int) -> None:
    """Check that the server has them all."""
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
        if f"sse_subscribers {streams:.1f}" not in await answer.text():
            raise BenchError(f"the server does not have {streams} streams")


def _close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close a stream; the reader is kept until here, because asyncio closes a connection without one."""
    writer.transport.abort()


async def _post_steadily(session: aiohttp.ClientSession, token: str, per_second: int, seconds: int) -> list[float]:
    """Post at a fixed rate without waiting for answers; returns the latency of each order, from its due time on."""
    label = secrets.token_hex(8)
    took_ms: list[float] = []
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    async def post(number: int, due: float) -> None:
        async with session.post(
            "/orders", data=ORDER, headers=headers | {"Idempotency-Key": f"{label}-{number}"}
        ) as answer:
            if answer.status != 202:
                raise BenchError(f"{answer.status} {await answer.text()}")
            await answer.read()
        took_ms.append((time.monotonic() - due) * 1e3)

    started = time.monotonic()
    async with asyncio.TaskGroup() as posts:
        for number in range(per_second * seconds):
            due = started + number / per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            posts.create_task(post(number, due))
    return took_ms


def _token(secret: str, account: str) -> str:
    return jwt.encode({"accountId": account, "exp": int(time.time()) + TOKEN_SECONDS}, secret, algorithm="HS256")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="length of each measurement (%(default)s)")
    parser.add_argument("--streams", type=_numbers, default=[0, 1000], help="levels, default 0,1000")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the server")
    return parser.parse_args()


def _numbers(text: str) -> Sequence[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
