"""A TCP proxy between a client and a server that injects faults into connections."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.support.serving import serving

UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class FaultyProxy:
    """Each new connection gets the next fault; without one it forwards everything."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname, parts.port
        self._faults: deque[Callable[[bytes], tuple[bytes, bool]]] = deque()
        self._received: list[bytearray] = []
        self.url = ""

    def lose_answer(self, times: int = 1) -> None:
        """Forward the request, but drop the response."""
        self._faults.extend([lambda _: (b"", True)] * times)

    def be_unavailable(self, times: int = 1) -> None:
        """Forward the request, but respond 503 as a proxy would."""
        self._faults.extend([lambda _: (UNAVAILABLE, True)] * times)

    def cut_at(self, marker: bytes) -> None:
        """Close the connection right after the marker in the response."""

        def cut(answered: bytes) -> tuple[bytes, bool]:
            place = answered.find(marker)
            return (answered, False) if place < 0 else (answered[: place + len(marker)], True)

        self._faults.append(cut)

    @property
    def connections(self) -> int:
        """The number of connections so far."""
        return len(self._received)

    def headers(self, name: str) -> list[str | None]:
        """The header's value in every request so far; none where it was missing."""
        values: list[str | None] = []
        for connection in self._received:
            for head in bytes(connection).decode("latin-1").split("\r\n\r\n"):
                if " HTTP/1.1\r\n" in head:
                    lines = (line.partition(": ") for line in head.split("\r\n")[1:])
                    values.append({key.lower(): value for key, _, value in lines}.get(name.lower()))
        return values

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._faults.popleft() if self._faults else None
        received = bytearray()
        self._received.append(received)
        upstream, sink = await asyncio.open_connection(self._host, self._port)

        async def forward() -> None:
            while chunk := await reader.read(65536):
                received.extend(chunk)
                sink.write(chunk)

        forwarding = asyncio.create_task(forward())
        answered, passed, ended = b"", 0, False
        try:
            while not ended and (chunk := await upstream.read(65536)):
                if fault is None:
                    writer.write(chunk)
                else:
                    answered += chunk
                    shown, ended = fault(answered)
                    writer.write(shown[passed:])
                    passed = len(shown)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            forwarding.cancel()
            sink.close()


@asynccontextmanager
async def faulty_proxy(target: str) -> AsyncGenerator[FaultyProxy, None]:
    proxy = FaultyProxy(target)
    async with serving(proxy.serve) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
