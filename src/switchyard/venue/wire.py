"""The way of one call to a venue over HTTP, and the venue's clock as its answers show it.

Reads and writes through `Transport`; tells the bridge what had left, what came back, and whether the response surely
belongs to the request.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Literal, TypeVar

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.orders.reasons import described
from switchyard.ports.clock import Clock
from switchyard.ports.venue import OnDeparture, ignore_departure
from switchyard.venue.interface import Answer, Refused, Request, Response, Took, Unclear
from switchyard.venue.transport import BrokerResponse, Exchange, Transport, never_awaited

_T = TypeVar("_T")

# A slower answer says less about the venue's time than the previous one, carried on.
ROUND_TRIP_SECONDS_MAX: Final = 1.0
QUERY_SECONDS: Final = 5.0
ANSWER_BYTES_MAX: Final = 256 * 1024
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024


class NoAnswer(SwitchyardError):
    """There is no response that counts; what that means for a message depends on what had left."""


class VenueTime:
    """The venue's time; its skew counts as zero before the first measurement (see `is_known`)."""

    def __init__(self, clock: Clock, header: str | None = None) -> None:
        """`header`: the response header with the time in RFC 3339."""
        self._clock = clock
        self._header = None if header is None else header.lower()
        self._anchor: tuple[datetime, float] | None = None
        """The venue's time, and our monotonic time when its answer arrived."""
        self.is_exact = False
        """Whether the last time was not cut to seconds."""

    def measure(self, headers: Mapping[str, str], asked_at: float) -> None:
        """Take the time from the response to a request that was sent at the monotonic time `asked_at`.

        The answer's time is taken as the time of its arrival: the venue's clock is ahead of that by the way back at
        most, so an expiry computed from it is never late.
        """
        answered_at = self._clock.monotonic()
        exact = None if self._header is None else _time_of(headers.get(self._header))
        read = exact or _date_of(headers.get("date"))
        if read is not None and answered_at - asked_at <= ROUND_TRIP_SECONDS_MAX:
            self._anchor, self.is_exact = (read, answered_at), exact is not None

    @property
    def is_known(self) -> bool:
        """Whether the venue's time was measured."""
        return self._anchor is not None

    def now(self) -> datetime | None:
        """The venue's time, carried on from the last measurement; None before the first."""
        if self._anchor is None:
            return None
        read, answered_at = self._anchor
        return read + timedelta(seconds=self._clock.monotonic() - answered_at)

    @property
    def skew(self) -> timedelta:
        """How far the venue's clock is ahead of ours."""
        now = self.now()
        return timedelta() if now is None else now - self._clock.now()


def _time_of(text: str | None) -> datetime | None:
    try:
        read = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if read is None or read.tzinfo is None else read.astimezone(UTC)


def _date_of(text: str | None) -> datetime | None:
    """The `Date` header, which is cut to whole seconds: too early by up to one, so never late."""
    try:
        read = None if text is None else parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return None if read is None or read.tzinfo is None else read.astimezone(UTC)


Changes = Literal["nothing", "message", "everything"]
"""What a call may change: nothing, by its message alone, or all orders at once."""

_current: ContextVar["HttpWire | None"] = ContextVar("the wire of the call", default=None)


class HttpWire:
    """`interface.Wire` of one call: a message over `sends`, questions over `queries`."""

    def __init__(
        self,
        sends: Transport,
        queries: Transport,
        time: VenueTime,
        clock: Clock,
        *,
        response_seconds: float = QUERY_SECONDS,
        query_seconds: float = QUERY_SECONDS,
        query_bytes_max: int = PAGE_BYTES_MAX,
        on_departure: OnDeparture = ignore_departure,
        believes_denials: bool = True,
        is_alone: bool = False,
        changes: Changes = "nothing",
        asks_by_post: bool = False,
        must_be_sure: Callable[[object], bool] | None = None,
    ) -> None:
        """`believes_denials`: also one that may answer another request. `is_alone`: the message has a connection of
        its own.

        `must_be_sure`: of a question's result; None: no result must. `changes`: what the call may change.
        `asks_by_post`: as in the descriptor; not while a message is sent, of which a copy could leave that way.
        """
        self._sends, self._queries = sends, queries
        self._time, self._clock = time, clock
        self._response_seconds = response_seconds
        self._query_seconds, self._query_bytes_max = query_seconds, query_bytes_max
        self._on_departure = on_departure
        self._believes_denials = believes_denials
        self._is_alone = is_alone
        self._must_be_sure = must_be_sure
        self.departed = False
        """Whether a byte of the message may have left."""
        self.exchange: Exchange | None = None
        """What became of the message's request; None if there was none, or it was cancelled while it was under way."""
        self.answer: Answer | None = None
        """What the response says about the message."""
        self.asked_body = b""
        """The body of the last response to a question."""
        self.has_response = False
        """Whether some question got a response, whatever it says."""
        self.is_answered = False
        """Whether the last question got a response that counts, whatever the adapter made of it."""
        self._is_sure = False
        """Whether it was the only one on its connection."""
        self._asked = self._answered = 0
        self._is_used = self._is_over = False
        self._changes: Changes = changes
        self._may_post = changes == "everything" or (asks_by_post and changes == "nothing")
        self._sender: asyncio.Task[object] | None = None
        """The task that waits for the response to the message."""
        self._has_ended = asyncio.Event()

    @property
    def time(self) -> datetime:
        """The venue's time now."""
        return self._time.now() or self._clock.now()

    @property
    def is_proof(self) -> bool:
        """Whether each question got a response that counts, and the last one the only one on its connection."""
        return self.is_answered and self._is_sure and self._asked == self._answered

    @contextmanager
    def used(self) -> Iterator[None]:
        """The wire may be used in this context and by its own tasks: an adapter cannot use the wire of another call."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    async def end(self) -> None:
        """Let nothing leave any more, so that what has left does not change: the call is over."""
        self._is_over = True
        if self._sender is not None:
            self._sender.cancel()
            await self._has_ended.wait()

    def _check_use(self) -> None:
        if self._is_over:
            raise NoAnswer("the call of this wire is over")
        if _current.get() is not self:
            raise NoAnswer("this is the wire of another call")

    async def send(self, request: Request, read: Callable[[Response], Answer]) -> Answer:
        """Send the message's request and return what it led to; raises NoAnswer."""
        self._check_use()
        if self._changes != "message":
            raise NoAnswer("only the wire of a message sends one")
        if self._is_used:
            raise NoAnswer("an adapter must not send a message twice")
        self._is_used = True

        def note_departure() -> None:
            self.departed = True
            self._on_departure()

        def may_deny(status: int, headers: Mapping[str, str], body: bytes) -> bool:
            self.answer = _read(read, status, headers, body)
            # A page of a proxy about the credential denies no order, and pauses the credential if it is sure.
            return _may_deny(self.answer) or status in (401, 403)

        self._sender = asyncio.current_task()
        try:
            self.exchange = exchange = await self._sends.ask(
                request.method,
                request.path,
                body=b"" if request.body is None else request.body,
                headers=request.headers,
                response_seconds=self._response_seconds,
                bytes_max=ANSWER_BYTES_MAX,
                on_departure=note_departure,
                awaits_end=never_awaited if self._believes_denials else may_deny,
                is_alone=self._is_alone,
            )
        finally:
            self._sender = None
            self._has_ended.set()
        if not isinstance(exchange, BrokerResponse):
            raise NoAnswer(described(exchange.code, exchange.detail))
        self.answer = self.answer or _read(read, exchange.status, exchange.headers, exchange.body)
        return self.answer

    async def ask(self, request: Request, read: Callable[[Response], _T]) -> _T:
        """Ask the venue something; raises NoAnswer."""
        self._check_use()
        if request.method != "GET" and not (self._may_post and request.method == "POST"):
            # A message that left this way would count as never sent.
            raise NoAnswer(f"a {request.method} changes something: an adapter sends a message with `send`")
        self.is_answered = self._is_sure = False
        self._asked += 1
        asked_at = self._clock.monotonic()

        must_be_sure = self._must_be_sure

        def awaits_end(status: int, headers: Mapping[str, str], body: bytes) -> bool:
            assert must_be_sure is not None, "otherwise the end is not awaited, and a page is read once"
            try:
                return must_be_sure(read(Response(status=status, headers=headers, body=body)))
            except Exception:
                return False  # it is read again below, and does not count

        exchange = await self._queries.ask(
            request.method,
            request.path,
            body=request.body,
            headers=request.headers,
            response_seconds=self._query_seconds,
            bytes_max=self._query_bytes_max,
            awaits_end=never_awaited if must_be_sure is None else awaits_end,
        )
        if not isinstance(exchange, BrokerResponse):
            raise NoAnswer(described(exchange.code, exchange.detail))
        if exchange.is_cached:
            raise NoAnswer("a cache answered instead of the venue")
        self.has_response = True
        self.asked_body = exchange.body
        result = read(Response(status=exchange.status, headers=exchange.headers, body=exchange.body))
        if must_be_sure is not None and must_be_sure(result) and not exchange.is_only_response:
            raise NoAnswer(f"HTTP {exchange.status} may answer another request")
        self._time.measure(exchange.headers, asked_at)
        self.is_answered, self._is_sure = True, exchange.is_only_response
        self._answered += 1
        return result


def _read(read: Callable[[Response], Answer], status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    try:
        return read(Response(status=status, headers=headers, body=body))
    except Exception as error:  # whatever an adapter cannot read is doubt
        return Unclear(text=repr(error))


def _may_deny(answer: Answer) -> bool:
    """Whether the answer decides something that the answer to another request could get wrong."""
    match answer:
        case Took(order=order):
            return order is None or order.status == "REJECTED"
        case Refused():
            return True
        case _:
            return False  # doubt anyway
