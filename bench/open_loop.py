"""`python -m bench.open_loop`: posts orders at a fixed rate, whatever the server answers and however slowly.

A process of its own, so that nothing else delays the requests. It reads a `Job` as JSON from standard input and writes
an `Answers` to standard output. Plain sockets need a fraction of the processor time of an HTTP client library.
"""

import asyncio
import re
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from typing import cast

import msgspec
import uvloop

from bench.percentiles import percentile

TICK_SECONDS = 0.005
# A gateway limits the connections of an address: clients have addresses of their own.
CONNECTIONS_PER_ADDRESS = 1_200
# Requests of the last moment get this long to be answered.
LAST_ANSWERS_SECONDS = 5.0
CONTENT_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
END_OF_HEADERS = b"\r\n\r\n"


class Job(msgspec.Struct, frozen=True):
    """What to post; each request uses the next of the bearer tokens and a key of its own."""

    host: str
    port: int
    tokens: list[str]
    body: str
    label: str
    per_second: float
    seconds: float
    connections: int


class Answers(msgspec.Struct, frozen=True):
    """The result. Times count from the moment at which a request was due until its answer, whatever its status."""

    started_at: float
    """When the first request was due, in seconds since 1970."""
    due: int
    posted_per_second: float
    """What left in time; less than asked for if the generator or its connections were the limit."""
    busy_share: float
    """Processor time of the generator per second; near 1, the generator was the limit."""
    statuses: dict[int, int]
    unanswered: int
    p50_ms: float
    p99_ms: float


class Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, generator: "Generator", client: int) -> None:
        self._generator = generator
        self.client = client
        self._buffer = b""
        self._due_at: float | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Stream connections have such a transport; uvloop's is not a subclass.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._generator.release(self)

    def post(self, request: bytes, due_at: float) -> None:
        assert self._transport is not None, "only an open connection is released"
        self._due_at = due_at
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(END_OF_HEADERS)
        length = CONTENT_LENGTH.search(head)
        if not found or length is None or len(body) < int(length[1]):
            return
        self._buffer = b""
        assert self._due_at is not None, "an answer belongs to a request"
        self._generator.record(int(head[9:12]), self._due_at)
        self._due_at = None
        self._generator.release(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._generator.replace(self)


class Generator:
    """Posts what is due on the free connections; without a free one, a request waits, and its time counts."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._free: deque[Connection] = deque()
        self._due: deque[float] = deque()
        self._reopening: set[asyncio.Task[None]] = set()
        self._statuses: Counter[int] = Counter()
        self._took_ms: list[float] = []
        self._posted = 0
        # Counts down once nothing more is posted, until it is 0.
        self._awaited = -1
        self._all_answered = asyncio.Event()
        self._open = True
        self._parts = [_around_key(job, token) for token in job.tokens]

    async def run(self) -> Answers:
        job = self._job
        for number in range(job.connections):
            await self._connect(1 + number // CONNECTIONS_PER_ADDRESS)
        started_at = time.time()
        started, busy = time.monotonic(), time.process_time()
        total = max(1, int(job.per_second * job.seconds))
        due = 0
        while (elapsed := time.monotonic() - started) < job.seconds:
            now_due = min(total, int(elapsed * job.per_second) + 1)
            self._due.extend([time.monotonic()] * (now_due - due))
            due = now_due
            self._post_due()
            await asyncio.sleep(TICK_SECONDS)
        posted_per_second, busy_share = self._posted / elapsed, (time.process_time() - busy) / elapsed
        self._awaited = due - len(self._took_ms)
        if self._awaited:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), LAST_ANSWERS_SECONDS)
        self._open = False
        return Answers(
            started_at=started_at,
            due=due,
            posted_per_second=posted_per_second,
            busy_share=busy_share,
            statuses=dict(self._statuses),
            unanswered=due - len(self._took_ms),
            p50_ms=percentile(self._took_ms or [0.0], 50),
            p99_ms=percentile(self._took_ms or [0.0], 99),
        )

    def release(self, connection: Connection) -> None:
        """Use the connection for the next request."""
        self._free.append(connection)
        self._post_due()

    def record(self, status: int, due_at: float) -> None:
        self._statuses[status] += 1
        self._took_ms.append((time.monotonic() - due_at) * 1e3)
        self._awaited -= 1
        if self._awaited == 0:
            self._all_answered.set()

    def replace(self, closed: Connection) -> None:
        """Open another connection for one that the server closed."""
        if closed in self._free:
            self._free.remove(closed)
        if self._open:
            task = asyncio.get_running_loop().create_task(self._connect(closed.client))
            self._reopening.add(task)
            task.add_done_callback(self._reopening.discard)

    async def _connect(self, client: int) -> None:
        await asyncio.get_running_loop().create_connection(
            lambda: Connection(self, client),
            self._job.host,
            self._job.port,
            local_addr=(f"127.0.0.{client}", 0) if self._job.host == "127.0.0.1" else None,
        )

    def _post_due(self) -> None:
        while self._due and self._free:
            head, tail = self._parts[self._posted % len(self._parts)]
            self._posted += 1
            key = f"{self._job.label}-{self._posted}".encode()
            self._free.popleft().post(head + key + tail, self._due.popleft())


def _around_key(job: Job, token: str) -> tuple[bytes, bytes]:
    """The request before and after its idempotency key."""
    body = job.body.encode()
    head = f"POST /orders HTTP/1.1\r\nHost: {job.host}:{job.port}\r\nAuthorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nIdempotency-Key: "
    return head.encode(), END_OF_HEADERS + body


if __name__ == "__main__":
    answers = uvloop.run(Generator(msgspec.json.decode(sys.stdin.buffer.read(), type=Job)).run())
    sys.stdout.buffer.write(msgspec.json.encode(answers))
