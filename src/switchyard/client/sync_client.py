"""The synchronous client for one gateway and one account, over the standard library's HTTP client."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from switchyard.client import accounts as account_calls
from switchyard.client import calls
from switchyard.client import kills as kill_calls
from switchyard.client.address import checked_url, default_token, default_url
from switchyard.client.attempts import Attempts, Reconnects
from switchyard.client.calls import Call, stream_headers, stream_path
from switchyard.client.connections import Connections
from switchyard.client.errors import ClientError, UnreadableResponse
from switchyard.client.events import RecordedEvent, StreamEvent, stream_event
from switchyard.client.pages import EventPages, InstrumentPages, OrderPages, PositionPages
from switchyard.client.retry import Retry
from switchyard.client.sse import MessageTooLong
from switchyard.domain.accounts.views import PositionView
from switchyard.domain.market.quotes import ListedInstrument
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import OrderSnapshot

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    """A method that sends the call."""

    @wraps(build)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._send(build(*args, **kwargs))

    return method


class Client:
    """Places, reads, follows and cancels the orders of one account; threads may share it. Close it, or use `with`.

    Failed requests are retried under the policy `retry`. `timeout_seconds` limits each wait for the network. Without
    arguments the URL comes from `SWITCHYARD_HOST` and `SWITCHYARD_PORT`, and the token from `SWITCHYARD_TOKEN`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        retry: Retry | None = None,
        timeout_seconds: float = 10.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        url = checked_url(default_url() if base_url is None else base_url)
        token = default_token() if token is None else token
        self._connections = Connections(url, {"Authorization": f"Bearer {token}"})
        self._retry = retry or Retry()
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._connections.close()

    place = _method(calls.place)
    dry_run = _method(calls.dry_run)
    place_by_content = _method(calls.place_by_content)
    do_order = _method(calls.do_order)
    order = _method(calls.order)
    quote = _method(calls.quote)
    venues = _method(calls.venues)
    cancel = _method(calls.cancel)
    amend = _method(calls.amend)
    close_position = _method(account_calls.close_position)
    cancel_all = _method(account_calls.cancel_all)
    account = _method(account_calls.account)
    explain = _method(account_calls.explain)
    exposure = _method(calls.exposure)
    kill = _method(kill_calls.kill)
    kill_state = _method(kill_calls.kill_state)
    kills = _method(kill_calls.kills)
    clear_kill = _method(kill_calls.clear_kill)

    def orders(
        self, *, statuses: Sequence[Status] = (), symbol: str | None = None, limit: int | None = None
    ) -> Iterator[OrderSnapshot]:
        """Yield the orders of the account, newest first; pages are requested as needed."""
        for call in OrderPages(statuses, symbol, limit).calls():
            yield from self._send(call)

    def positions(self, *, flat: bool = False) -> Iterator[PositionView]:
        """Yield the account's positions by symbol, with `flat` also those that are closed; pages as needed."""
        for call in PositionPages(flat).calls():
            yield from self._send(call)

    def instruments(self) -> Iterator[ListedInstrument]:
        """Yield the instruments of the gateway's catalogue by symbol; pages are requested as needed."""
        for call in InstrumentPages().calls():
            yield from self._send(call)

    def events(
        self,
        *,
        order_id: str | None = None,
        account_id: str | None = None,
        since: datetime | None = None,
        after: datetime | None = None,
        after_seq: int = 0,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> Iterator[RecordedEvent]:
        """Yield the events of an order or of the account, oldest first; pages are requested as needed.

        `since` selects events at or after a time, `after` events strictly after it, `after_seq` events after a number,
        for example the `last_event_id` of `ResyncRequired`.
        """
        for call in EventPages(order_id, account_id, since, after, after_seq, newest_first, limit).calls():
            yield from self._send(call)

    def stream(
        self,
        order_id: str | None = None,
        last_event_id: str | None = None,
        *,
        on_disconnect: Callable[[ClientError], None] | None = None,
    ) -> Generator[StreamEvent, None, None]:
        """Yield the events of one order or of the whole account as they happen; close it with `contextlib.closing`.

        Reconnects and resumes like `AsyncClient.stream`.
        """
        reconnects = Reconnects(self._retry, last_event_id, on_disconnect)
        while True:
            loss: ClientError | None = None
            parser = reconnects.parser()
            listening = self._connections.listen(
                stream_path(order_id), stream_headers(reconnects.last_event_id), self._timeout_seconds
            )
            try:
                with closing(listening) as chunks:
                    for chunk in chunks:
                        for message in parser.feed(chunk):
                            event = stream_event(message)
                            reconnects.received(message)
                            yield event
            except MessageTooLong as error:
                loss = UnreadableResponse(f"the stream cannot be parsed: {error}")
            except ClientError as error:
                loss = error
            self._sleep(reconnects.delay_after(loss))

    def send(self, call: Call[T]) -> T:
        """Send a call that has no method of its own, with retries."""
        return self._send(call)

    def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._retry, self._timeout_seconds)
        while True:
            try:
                return call.read(self._connections.exchange(call, attempts.timeout_seconds))
            except ClientError as error:
                delay = attempts.delay_after(error)
            self._sleep(delay)
