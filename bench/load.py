"""Generates load on a server: closed loop with wrk, or at a fixed rate with `bench.open_loop`."""

import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import jwt
import msgspec

from bench.checkouts import ROOT
from bench.open_loop import Answers, Job
from bench.processes import BenchError, environment_of

SCRIPT = Path(__file__).parent / "wrk" / "orders.lua"
MARK = "MEASURED "
# Makes wrk count answers by status, which costs it time for each answer.
STATUSES_VARIABLE = "BENCH_STATUSES"
# Orders of one account and symbol are sent one after the other, so a single account would measure only that.
ACCOUNTS = 16
TOKEN_SECONDS = 3_600
# Longer than any response takes, so that slow responses appear in p99 and not as errors.
RESPONSE_SECONDS_MAX = 10

# Rests at the paper exchange; the null venue fills it.
ORDER = (
    '{"symbol":"USDJPY","side":"BUY","type":"LIMIT","qty":1000,"price":100.001,"timeInForce":"GTC","strategy":"bench"}'
)
# Filled at once by the paper exchange.
MARKET_ORDER = '{"symbol":"USDJPY","side":"BUY","type":"MARKET","qty":1000,"timeInForce":"IOC","strategy":"bench"}'


class Load(msgspec.Struct, frozen=True):
    """The result of a wrk run; the field names are those that `orders.lua` prints."""

    answers: int
    rejections: int
    socket_errors: int
    seconds: float
    p50_ms: float
    p99_ms: float
    statuses: dict[int, int] = {}
    """Answers by status, if they were asked for."""

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
    load = _run_wrk(url, bearer, connections, seconds, ORDER)
    if load.rejections or load.socket_errors or not load.answers:
        raise BenchError(f"not every order was accepted: {load}")
    return load


def press_orders(url: str, bearer: Sequence[str], connections: int, seconds: int, body: str = MARKET_ORDER) -> Load:
    """Post orders without pause, also after a refusal, and count the answers by status."""
    return _run_wrk(url, bearer, connections, seconds, body, {STATUSES_VARIABLE: "1"})


def _run_wrk(
    url: str,
    bearer: Sequence[str],
    connections: int,
    seconds: int,
    body: str,
    environment: Mapping[str, str] | None = None,
) -> Load:
    options = ["-t1", f"-c{connections}", f"-d{seconds}s", "--latency", f"--timeout={RESPONSE_SECONDS_MAX}s"]
    command = [find_wrk(), *options, "-s", str(SCRIPT), url, "--", secrets.token_hex(8), body, *bearer]
    completed = subprocess.run(
        command,
        env=environment_of(environment or {}),
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )
    results = [line for line in completed.stdout.splitlines() if line.startswith(MARK)]
    if not results:
        raise BenchError(f"wrk exited with {completed.returncode}:\n{completed.stdout}{completed.stderr}")
    return msgspec.json.decode(results[0].removeprefix(MARK), type=Load)


def post_at_rate(
    url: str, bearer: Sequence[str], per_second: float, seconds: int, connections: int, body: str = ORDER
) -> Answers:
    """Post at a fixed rate from another process, whatever the server answers."""
    address = urlsplit(url)
    job = Job(
        host=address.hostname or "",
        port=address.port or 0,
        tokens=list(bearer),
        body=body,
        label=secrets.token_hex(8),
        per_second=per_second,
        seconds=seconds,
        connections=connections,
    )
    completed = subprocess.run(
        [sys.executable, "-m", "bench.open_loop"],
        input=msgspec.json.encode(job),
        cwd=ROOT,
        capture_output=True,
        timeout=seconds + 60,
        check=False,
    )
    if completed.returncode:
        raise BenchError(f"the load generator exited with {completed.returncode}:\n{completed.stderr.decode()}")
    return msgspec.json.decode(completed.stdout, type=Answers)
