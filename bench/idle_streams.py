"""Holds open streams of accounts that place no orders, so that nothing is ever sent on them except keepalives."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import jwt

from bench.load import TOKEN_SECONDS
from bench.processes import BenchError

# The default of SWITCHYARD_STREAMS_PER_ACCOUNT_MAX.
STREAMS_PER_ACCOUNT = 100
ANSWER_SECONDS_MAX = 10.0


@contextmanager
def idle_streams(url: str, secret: str, count: int) -> Iterator[None]:
    """Hold the streams until the block ends; the answers are left unread in the buffers of the sockets."""
    address = urlsplit(url)
    expiry = int(time.time()) + TOKEN_SECONDS
    with ExitStack() as stack:
        for number in range(count):
            claims = {"accountId": f"idle-{number // STREAMS_PER_ACCOUNT:02}", "exp": expiry}
            token = jwt.encode(claims, secret, algorithm="HS256")
            stream = socket.create_connection((address.hostname, address.port), timeout=ANSWER_SECONDS_MAX)
            stack.enter_context(stream)
            stream.sendall(
                f"GET /stream HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
            )
            status = stream.recv(15)
            if status != b"HTTP/1.1 200 OK":
                raise BenchError(f"stream {number} was rejected: {status!r}")
        yield
