"""The synchronous client with the methods of the asynchronous one, so that the same tests run with both."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from switchyard.client import AsyncClient, Client, ListedInstrument, RecordedEvent, StreamEvent
from switchyard.domain.orders.order import OrderSnapshot

T = TypeVar("T")


class ThreadedClient:
    """Each call runs in a thread of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = Client(*arguments, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def __getattr__(self, name: str) -> Any:
        async def method(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self._client, name), *arguments, **options)

        return method

    async def orders(self, **options: Any) -> AsyncGenerator[OrderSnapshot, None]:
        for order in await asyncio.to_thread(lambda: list(self._client.orders(**options))):
            yield order

    async def instruments(self) -> AsyncGenerator[ListedInstrument, None]:
        for instrument in await asyncio.to_thread(lambda: list(self._client.instruments())):
            yield instrument

    async def events(self, **options: Any) -> AsyncGenerator[RecordedEvent, None]:
        for event in await asyncio.to_thread(lambda: list(self._client.events(**options))):
            yield event

    async def stream(self, *arguments: Any, **options: Any) -> AsyncGenerator[StreamEvent, None]:
        events = self._client.stream(*arguments, **options)
        try:
            while True:
                yield await asyncio.to_thread(_next, events)
        finally:
            events.close()


def _next(items: Iterator[T]) -> T:
    return next(items)


def make_client(kind: str, url: str, token: str, **options: Any) -> AsyncClient:
    """A client of the kind `async` or `sync`."""
    if kind == "async":
        return AsyncClient(url, token, **options)
    return cast(AsyncClient, ThreadedClient(url, token, **options))
