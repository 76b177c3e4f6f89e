"""When a failed request is sent again and a lost stream reconnects; the same for both clients. Performs no I/O."""

import time
from collections.abc import Callable
from typing import Any

from switchyard.client.calls import Call
from switchyard.client.errors import ClientError, NotReachable
from switchyard.client.sse import Message, Parser
from switchyard.client.wire import Retry


class Attempts:
    """The attempts of one call.

    Every request of this API is safe to repeat. Derived keys detect a repeat only within a window, so no repeat is
    allowed that might arrive after it.
    """

    def __init__(self, call: Call[Any], retry: Retry, timeout_seconds: float) -> None:
        self.timeout_seconds = max(timeout_seconds, call.timeout_seconds_min)
        self._retry = call.retry or retry
        self._key = call.idempotency_key
        self._ends_at = time.monotonic() + call.window_seconds - self.timeout_seconds
        self._failures = 0
        self._in_doubt = False

    def delay_after(self, error: ClientError) -> float:
        """Return the delay before the next attempt; raises the error if there is none."""
        self._failures += 1
        # Once an attempt may have arrived, the request stays in doubt, whatever the later attempts return.
        error.in_doubt = self._in_doubt = self._in_doubt or error.in_doubt
        if self._in_doubt:
            error.idempotency_key = self._key
        if not error.retryable or self._failures >= self._retry.attempts_max:
            raise error
        delay = self._retry.delay(self._failures, error.retry_after_seconds)
        if self._in_doubt and time.monotonic() + delay > self._ends_at:
            raise error
        return delay


class Reconnects:
    """The connections of one stream: each continues after the last message received.

    A stream that was connected once reconnects without a limit. If the first connection cannot be made, it fails after
    `Retry.attempts_max` attempts, like any other request.
    """

    def __init__(
        self, retry: Retry, last_event_id: str | None, on_disconnect: Callable[[ClientError], None] | None
    ) -> None:
        self.last_event_id = last_event_id
        self._retry = retry
        self._on_disconnect = on_disconnect
        self._failures = 0
        self._was_connected = False
        self._parser = Parser(last_event_id)

    def parser(self) -> Parser:
        """A parser for the next connection."""
        self._parser = Parser(self.last_event_id)
        return self._parser

    def received(self, message: Message) -> None:
        """Remember the place at which the stream resumes."""
        self._failures, self._was_connected = 0, True
        self.last_event_id = message.id

    def delay_after(self, loss: ClientError | None) -> float:
        """Return the delay before the next connection; raises the error if there is none."""
        loss = loss or NotReachable("the gateway closed the stream")
        self._failures += 1
        if not loss.retryable or (not self._was_connected and self._failures >= self._retry.attempts_max):
            raise loss
        if self._on_disconnect is not None and self._was_connected and self._failures == 1:
            self._on_disconnect(loss)
        return self._retry.delay(self._failures, self._parser.retry_seconds or 0.0)
