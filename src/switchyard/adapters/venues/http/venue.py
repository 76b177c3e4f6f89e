"""The venue adapter of the HTTP protocol: sends, cancels, amends, looks up, reads reports, and measures the venue's
clock.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Final, Literal, TypeGuard
from urllib.parse import quote as quoted

from switchyard.adapters.venues.http.messages import (
    VenueNames,
    amend_order,
    place_order,
    report_page,
    statement_page,
    venue_order,
)
from switchyard.adapters.venues.http.outcomes import (
    FINAL_ERRORS,
    AnswerRules,
    FinalErrors,
    amended,
    cancelled,
    decoded,
    describe,
    may_deny,
    may_end,
    named_orders,
    shows,
    shows_taken_order,
    submitted,
)
from switchyard.adapters.venues.http.transport import (
    CONNECT_SECONDS,
    AwaitsEnd,
    BrokerResponse,
    Exchange,
    Lost,
    Pool,
    Transport,
    never_awaited,
)
from switchyard.adapters.venues.one_by_one import OneByOne
from switchyard.adapters.venues.wire import (
    IDEMPOTENCY_HEADER,
    UNKNOWN_ORDER,
    CanceledAll,
    ErrorResponse,
    OpenOrders,
    OrderResponse,
    Reports,
    Statement,
    encode,
)
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders.amends import AMENDS_MAX, Amend, current_id
from switchyard.domain.orders.order import Order, TimeInForce
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    SEND_LIMIT,
    Accepted,
    Capabilities,
    OnDeparture,
    ProbeResult,
    ReportPage,
    SendOutcome,
    StatementPage,
    Unsent,
    VenueOrder,
    VenueRejected,
    VenueUnavailable,
    ignore_departure,
    supports,
)

# A slower answer says less about the broker's time than the previous one, carried on.
ROUND_TRIP_SECONDS_MAX: Final = 1.0


class VenueTime:
    """The broker's time; its skew counts as zero before the first measurement (see `is_known`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._anchor: tuple[datetime, float] | None = None
        """The broker's time, and our monotonic time when its answer arrived."""

    def measure(self, venue_time: str | None, date: str | None, asked_at: float) -> None:
        """Take the time from a response to a request that was sent at the monotonic time `asked_at`.

        The answer's time is taken as the time of its arrival: the broker's clock is ahead of that by the way back at
        most, so an expiry computed from it is never late.
        """
        answered_at = self._clock.monotonic()
        read = _time_of(venue_time) or _date_of(date)
        if read is not None and answered_at - asked_at <= ROUND_TRIP_SECONDS_MAX:
            self._anchor = (read, answered_at)

    @property
    def is_known(self) -> bool:
        """Whether the broker's time was measured."""
        return self._anchor is not None

    def now(self) -> datetime | None:
        """The broker's time, carried on from the last measurement; none before the first."""
        if self._anchor is None:
            return None
        read, answered_at = self._anchor
        return read + timedelta(seconds=self._clock.monotonic() - answered_at)

    @property
    def skew(self) -> timedelta:
        """How far the broker's clock is ahead of ours."""
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


# As many connections as a worker has send slots by default (OUTBOX_BATCH_SIZE times OUTBOX_PARALLELISM). Spare ones are
# enough for two orders at once after a quiet time, and for a claimed batch under load.
SENDS: Final = Pool(128, spares_min=2, spares_max=32)
# Queries use a separate pool, so that orders in doubt can be looked up while every send hangs. One spare connection is
# enough to read the next reports without a handshake.
QUERIES: Final = Pool(16, spares_min=1, spares_max=4)
# From the first byte sent to the last byte read, by time in force. An IOC order is useless after its send deadline.
RESPONSE_SECONDS: Final[Mapping[TimeInForce, float]] = MappingProxyType(
    {"IOC": 2.5, "FOK": 5.0, "GTC": 5.0, "DAY": 5.0}
)
QUERY_SECONDS: Final = 5.0
# With less time for an answer, the cancel of an order in the place of another one waits for the next attempt.
CANCEL_SECONDS_MIN: Final = 1.0
ORDER_BYTES_MAX: Final = 256 * 1024
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024


class HttpVenue(OneByOne):
    """One broker; its capabilities come from the configuration."""

    def __init__(
        self,
        name: VenueName,
        *,
        url: str,
        capabilities: Capabilities,
        clock: Clock,
        final_errors: FinalErrors = FINAL_ERRORS,
        idempotency_header: bool = True,
        names: VenueNames | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        sends: Pool = SENDS,
        queries: Pool = QUERIES,
        response_seconds: Mapping[TimeInForce, float] = RESPONSE_SECONDS,
        note_unasked: Callable[[], None] = lambda: None,
    ) -> None:
        """`sends`: the connections for orders, amends and cancels; `note_unasked` as in `Transport`."""
        assert not sends.reuses or capabilities.dedupe == "permanent", "a second response would repeat an order"
        assert not queries.reuses, "an empty page in answer to another query would be believed"
        assert CONNECT_SECONDS + max(response_seconds.values()) <= SEND_LIMIT.total_seconds()
        self._name = name
        self._names = names or VenueNames()
        self._capabilities = capabilities
        self._clock = clock
        self._response_seconds = response_seconds
        self._sends, self._queries = (
            Transport(url, pool, headers=headers, note_unasked=note_unasked) for pool in (sends, queries)
        )
        self._rules = AnswerRules(final_errors, dedupes_permanently=capabilities.dedupe == "permanent")
        self._idempotency_header = idempotency_header
        self._time = VenueTime(clock)

    @property
    def name(self) -> VenueName:
        """The venue's name in the router and the settings."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """As configured: a broker states its guarantees in its documents, not in its responses."""
        return self._capabilities

    @property
    def clock_offset(self) -> timedelta | None:
        """How far the broker's clock is ahead of ours, as its last answers show it."""
        return self._time.skew if self._time.is_known else None

    async def start(self) -> None:
        """Create the connection pools."""
        await self._sends.start()
        await self._queries.start()

    async def close(self) -> None:
        """Close every connection; sends in flight end in doubt."""
        await self._sends.close()
        await self._queries.close()

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send an order under its `venue_client_order_id`, which is also its idempotency key."""
        if not supports(self._capabilities, order):
            # Accepted by a gateway with other settings. A broker that ignores `stop_price` would execute it at once.
            return VenueRejected("BROKER_REJECTED", "UNSUPPORTED_BY_VENUE")
        if self._capabilities.request_expiry and not self._time.is_known:
            return Unsent("VENUE_DOWN", "its clock is not known yet")
        if self._names.lacks(order.account_id):
            setting = f"VENUE_ACCOUNTS_{self._name.upper()}"
            return VenueRejected("UNAUTHORIZED", f"{setting} has no account of {self._name} for {order.account_id}")
        order = self._names.as_there(order)
        message = place_order(
            order,
            self._expires_at(order),
            can_reduce_only=self._capabilities.reduce_only,
            account=self._names.account(order.account_id),
        )
        key = order.venue_client_order_id if self._idempotency_header else None
        exchange = await self._send("POST", "/orders", order, encode(message), on_departure, key=key)
        outcome = submitted(order, exchange, self._clock.now(), self._rules)
        if isinstance(exchange, BrokerResponse) and exchange.status == 409 and not isinstance(outcome, Accepted):
            return await self._find_duplicate(order) or outcome
        return outcome

    async def cancel(self, order: Order) -> SendOutcome:
        """Cancel an order by its present client order id; without a key, whose answer a broker may repeat.

        If an amend has replaced the order there, the one in its place is cancelled, as long as time remains.
        """
        client_id, began_at, is_successor = current_id(order), self._clock.monotonic(), False
        response_seconds = self._response_seconds[order.time_in_force]
        while True:
            path = f"{_path(client_id)}/cancel"
            exchange = await self._send("POST", path, order, response_seconds=response_seconds)
            outcome = cancelled(order, client_id, exchange, self._clock.now(), self._rules)
            elapsed_seconds = self._clock.monotonic() - began_at
            response_seconds = SEND_LIMIT.total_seconds() - CONNECT_SECONDS - elapsed_seconds
            if is_successor and outcome == VenueRejected("UNKNOWN_ORDER"):
                # The broker has just named it: it may be open, so the cancel waits for the next attempt.
                return Unsent("REPLACED", client_id, bytes_sent=True)
            if not isinstance(outcome, Unsent) or outcome.code != "REPLACED" or response_seconds < CANCEL_SECONDS_MIN:
                return outcome
            assert outcome.detail is not None, "it names the order in its place"
            client_id, is_successor = VenueClientOrderId(outcome.detail), True

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        """Amend an order under the amend's own id, which is also its idempotency key.

        On a connection of its own, also where others are reused: a wrong denial of an amend is not put right by a
        resend, which no amend has, and in place no report names it.
        """
        if self._capabilities.request_expiry and not self._time.is_known:
            return Unsent("VENUE_DOWN", "its clock is not known yet")
        exchange = await self._send(
            "PATCH",
            _path(amend.orig_client_order_id),
            order,
            encode(amend_order(amend, self._expires_at(order))),
            key=amend.client_order_id if self._idempotency_header else None,
            is_alone=True,
        )
        return amended(order, amend, exchange, self._clock.now(), self._rules)

    async def cancel_all(self) -> None:
        """Cancel every open order under our credentials; raises VenueUnavailable."""
        exchange = await self._sends.ask(
            "POST",
            "/orders/cancel-all",
            body=b"",
            headers={"Content-Type": "application/json"},
            response_seconds=max(self._response_seconds.values()),
            bytes_max=ORDER_BYTES_MAX,
        )
        if not _is_ok(exchange) or decoded(exchange.body, CanceledAll) is None:
            raise self._unavailable(exchange)

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        """Return the order as the broker has it, or None if the broker reports it unknown; raises VenueUnavailable."""
        if self._capabilities.lookup == "none":
            raise VenueUnavailable(f"{self._name} has no order lookup (VENUE_LOOKUP_ is none)")
        legs = await self._find(client_id)
        return venue_order(legs[-1], legs[:-1], names=self._names) if legs else None

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that the broker may still fill, in pages; raises VenueUnavailable."""
        if self._capabilities.lookup == "none":
            raise VenueUnavailable(f"{self._name} has no order lookup (VENUE_LOOKUP_ is none)")
        path = "/orders?open=true"
        seen: set[str] = set()
        while True:
            asked_at = self._clock.monotonic()
            exchange = await self._query(path, PAGE_BYTES_MAX)
            page = decoded(exchange.body, OpenOrders) if _is_ok(exchange) else None
            if page is None or not isinstance(exchange, BrokerResponse):
                raise self._unavailable(exchange)
            self._time.measure(exchange.venue_time, exchange.date, asked_at)
            yield [venue_order(order, names=self._names) for order in page.orders]
            if page.next is None:
                return
            if page.next in seen:
                raise VenueUnavailable(f"{self._name}: the list of open orders does not end: {page.next!r} comes again")
            seen.add(page.next)
            path = f"/orders?open=true&after={quoted(page.next, safe='')}"

    async def reports(self, after: int, limit: int) -> ReportPage:
        """Return the next execution reports; the broker holds the request briefly if there are none.

        Raises VenueUnavailable: an error is not an empty page.
        """
        exchange = await self._query(f"/reports?after={after}&limit={limit}", PAGE_BYTES_MAX)
        page = decoded(exchange.body, Reports) if _is_ok(exchange) else None
        if page is None:
            raise self._unavailable(exchange)
        return report_page(page, after, self._name)

    async def statement(self, after: int, limit: int) -> StatementPage:
        """Return the next executions of the broker's books; raises VenueUnavailable."""
        exchange = await self._query(f"/statement?after={after}&limit={limit}", PAGE_BYTES_MAX)
        page = decoded(exchange.body, Statement) if _is_ok(exchange) else None
        if page is None:
            raise self._unavailable(exchange)
        return statement_page(page, self._names)

    async def probe(self) -> ProbeResult:
        """Look up an order id that does not exist; measures the broker's clock as well.

        A proxy's 404 does not show that the broker behind it is working through its input. Raises VenueUnavailable.
        """
        asked_at = self._clock.monotonic()
        # A new id each time, so that no cache has the answer.
        probe_id = VenueClientOrderId(f"probe-{asked_at * 1000:.0f}")
        exchange = await self._query(_path(probe_id), ORDER_BYTES_MAX)
        if isinstance(exchange, BrokerResponse) and exchange.status == 429:
            return "busy"
        if not isinstance(exchange, BrokerResponse) or exchange.status not in (200, 404):
            raise self._unavailable(exchange)
        if self._capabilities.lookup != "none" and not _is_unknown(probe_id, exchange):
            raise self._unavailable(exchange)
        self._time.measure(exchange.venue_time, exchange.date, asked_at)
        return "answered"

    async def _send(
        self,
        method: Literal["POST", "PATCH"],
        path: str,
        order: Order,
        body: bytes = b"",
        on_departure: OnDeparture = ignore_departure,
        *,
        key: VenueClientOrderId | None = None,
        response_seconds: float | None = None,
        is_alone: bool = False,
    ) -> Exchange:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers[IDEMPOTENCY_HEADER] = key
        return await self._sends.ask(
            method,
            path,
            body=body,
            on_departure=on_departure,
            headers=headers,
            response_seconds=response_seconds or self._response_seconds[order.time_in_force],
            bytes_max=ORDER_BYTES_MAX,
            awaits_end=never_awaited if self._rules.dedupes_permanently and not is_alone else may_deny,
            is_alone=is_alone,
        )

    async def _query(self, path: str, bytes_max: int, awaits_end: AwaitsEnd = never_awaited) -> Exchange:
        exchange = await self._queries.ask(
            "GET", path, response_seconds=QUERY_SECONDS, bytes_max=bytes_max, awaits_end=awaits_end
        )
        if isinstance(exchange, BrokerResponse) and exchange.is_cached:
            return Lost("UNKNOWN", "a cache answered instead of the broker", exchange.address)
        return exchange

    async def _find(self, client_id: VenueClientOrderId) -> list[OrderResponse]:
        """The order with this id, then each order that was put in the place of the one before; empty if it is unknown.

        An order that the broker names and does not show may be open there: only the first can be absent.
        """
        legs: list[OrderResponse] = []
        for _ in range(AMENDS_MAX + 1):
            response = self._found(client_id, await self._query(_path(client_id), ORDER_BYTES_MAX, may_end))
            if response is None and legs:
                raise VenueUnavailable(f"{self._name}: it names {client_id} as the successor of an order, and lacks it")
            if response is None:
                return []
            legs.append(response)
            if response.replaced_by is None:
                return legs
            client_id = VenueClientOrderId(response.replaced_by)
        raise VenueUnavailable(f"{self._name}: the orders that replace each other do not end: {client_id}")

    def _found(self, client_id: VenueClientOrderId, exchange: Exchange) -> OrderResponse | None:
        """The order in the answer to a lookup, None if the broker itself says that it is unknown.

        An answer that ends the order must be the only response on its connection, as one that denies it.
        """
        if _is_ok(exchange):
            response = decoded(exchange.body, OrderResponse)
            is_proof = exchange.is_only_response or not may_end(exchange.status, exchange.body)
            if response is not None and client_id in (
                response.client_order_id or response.idempotency_key,
                response.amended_by,
            ):
                is_contradicted = response.status == "rejected" and shows_taken_order(exchange.body)
                if is_proof and not is_contradicted:
                    return response
        elif isinstance(exchange, BrokerResponse) and exchange.is_only_response and _is_unknown(client_id, exchange):
            return None
        raise self._unavailable(exchange)

    async def _find_duplicate(self, order: Order) -> Accepted | None:
        """Look up the order that a 409 refers to; None unless the broker shows this same order."""
        if self._capabilities.lookup == "none":
            return None
        try:
            legs = await self._find(order.venue_client_order_id)
        except VenueUnavailable:
            return None
        if not legs or not shows(order, legs[-1]):
            return None
        return Accepted(legs[-1].broker_order_id, already_processed=True, accepted_at=legs[-1].accepted_at)

    def _expires_at(self, order: Order) -> datetime | None:
        """When the broker must reject the request, in its own time.

        Counted from the commit of the attempt, so that the request of a paused sender arrives too late; never from a
        time that is still to come, which the clock of the process that accepted the order may have given to it.
        """
        window = self._capabilities.acceptance_window
        if window is None or not self._capabilities.request_expiry:
            return None
        return min(order.updated_at, self._clock.now()) + self._time.skew + window

    def _unavailable(self, exchange: Exchange) -> VenueUnavailable:
        return VenueUnavailable(f"{self._name}: {describe(exchange)}")


def _path(client_id: VenueClientOrderId) -> str:
    return f"/orders/{quoted(client_id, safe='')}"


def _is_unknown(client_id: VenueClientOrderId, response: BrokerResponse) -> bool:
    """Whether the broker says that it has no such order: any other 404 may come from a proxy or a wrong path."""
    problem = decoded(response.body, ErrorResponse) if response.status == 404 else None
    names = named_orders(response.body)
    if shows_taken_order(response.body):
        return False
    return problem is not None and problem.error == UNKNOWN_ORDER and names is not None and names <= {client_id}


def _is_ok(exchange: Exchange) -> TypeGuard[BrokerResponse]:
    return isinstance(exchange, BrokerResponse) and exchange.status == 200
