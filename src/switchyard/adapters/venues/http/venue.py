"""A broker behind HTTP, as a venue."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Final, TypeGuard
from urllib.parse import quote as quoted

import structlog
from msgspec import UNSET

from switchyard.adapters.venues.http.outcomes import cancelled, decoded, shows, submitted
from switchyard.adapters.venues.http.transport import (
    CONNECT_SECONDS,
    BrokerResponse,
    Exchange,
    Lost,
    NotSent,
    Transport,
)
from switchyard.adapters.venues.wire import (
    IDEMPOTENCY_HEADER,
    REPORT_STATUS,
    UNKNOWN_ORDER,
    ErrorResponse,
    OpenOrders,
    OrderResponse,
    PlaceOrder,
    QuoteResponse,
    Report,
    Reports,
    encode,
)
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.money import canonical
from switchyard.domain.orders import Order, TimeInForce
from switchyard.domain.reasons import described
from switchyard.domain.reports import ExecutionIdScope, ExecutionReport
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    SEND_LIMIT,
    Accepted,
    Capabilities,
    Dedupe,
    Lookup,
    OnDeparture,
    ReportPage,
    SendOutcome,
    VenueFill,
    VenueOrder,
    VenueUnavailable,
    ignore_departure,
)

# As many as a worker has slots by default (OUTBOX_BATCH_SIZE times OUTBOX_PARALLELISM).
CONNECTIONS_MAX: Final = 128
# Questions have connections of their own: doubt can be settled while every send hangs.
QUESTIONS_MAX: Final = 16
# Shorter than the shortest keep-alive in common use (5 s): a connection that the broker closes just when an order
# leaves on it costs that order its certainty.
IDLE_SECONDS: Final = 4.0
# From the first byte sent to the last byte read, by time in force: IOC is worth nothing later, the others can wait.
ANSWER_SECONDS: Final[Mapping[TimeInForce, float]] = MappingProxyType({"IOC": 2.5, "FOK": 5.0, "GTC": 5.0, "DAY": 5.0})
QUESTION_SECONDS: Final = 5.0
ORDER_BYTES_MAX: Final = 256 * 1024
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
# With pages of some hundred, tens of thousands of open orders; a broker that goes on beyond that never ends.
OPEN_ORDER_PAGES_MAX: Final = 200
# Between two tries to read reports from a broker that does not answer.
REST_SECONDS: Final = 1.0

log = structlog.get_logger()


class HttpVenue:
    """Speaks the protocol of `wire` to one broker; what it may rely on there is configured."""

    def __init__(
        self,
        name: VenueName,
        *,
        url: str,
        dedupe: Dedupe,
        clock: Clock,
        lookup: Lookup = "all",
        acceptance_window: timedelta = timedelta(seconds=10),
        request_expiry: bool = False,
        execution_ids: ExecutionIdScope = "venue",
        headers: Mapping[str, str] = MappingProxyType({}),
        connections_max: int = CONNECTIONS_MAX,
        idle_seconds: float = IDLE_SECONDS,
        answer_seconds: Mapping[TimeInForce, float] = ANSWER_SECONDS,
    ) -> None:
        assert CONNECT_SECONDS + max(answer_seconds.values()) <= SEND_LIMIT.total_seconds()
        self._name = name
        self._capabilities = Capabilities(
            dedupe=dedupe,
            lookup="none" if dedupe == "none" else lookup,
            acceptance_window=acceptance_window,
            request_expiry=request_expiry,
            execution_ids=execution_ids,
        )
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._sends = Transport(url, connections_max=connections_max, idle_seconds=idle_seconds, headers=headers)
        self._questions = Transport(url, connections_max=QUESTIONS_MAX, idle_seconds=idle_seconds, headers=headers)
        self._reports_fail = False

    @property
    def name(self) -> VenueName:
        """What the router and the settings call it."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """As configured: what a broker really keeps to is in its documents, not in its answers."""
        return self._capabilities

    async def start(self) -> None:
        """Be ready to send."""
        await self._sends.start()
        await self._questions.start()

    async def close(self) -> None:
        """Drop every connection; what was under way on one ends in doubt."""
        await self._sends.close()
        await self._questions.close()

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send an order under its `venue_client_order_id`, which is also its idempotency key."""
        exchange = await self._send("/orders", order, encode(self._message(order)), on_departure)
        outcome = submitted(order, exchange, self._clock.now())
        if isinstance(exchange, BrokerResponse) and exchange.status == 409 and not isinstance(outcome, Accepted):
            return await self._processed_before(order) or outcome
        return outcome

    async def cancel(self, order: Order) -> SendOutcome:
        """Ask to drop an order, by its `venue_client_order_id`."""
        exchange = await self._send(f"{_path(order.venue_client_order_id)}/cancel", order)
        return cancelled(order, exchange, self._clock.now())

    async def find_by_client_order_id(self, client_id: VenueClientOrderId) -> VenueOrder | None:
        """The order as the broker has it, or none where it says so; raises VenueUnavailable."""
        if self._capabilities.lookup == "none":
            raise VenueUnavailable(f"{self._name} cannot be asked for an order")
        answer = await self._find(client_id)
        return None if answer is None else _shown(answer)

    async def open_orders(self) -> Sequence[VenueOrder]:
        """Every order that the broker may still fill; raises VenueUnavailable."""
        if self._capabilities.lookup == "none":
            raise VenueUnavailable(f"{self._name} cannot be asked for its open orders")
        found: list[VenueOrder] = []
        path = "/orders?open=true"
        for _ in range(OPEN_ORDER_PAGES_MAX):
            exchange = await self._ask(path, PAGE_BYTES_MAX)
            page = decoded(exchange.body, OpenOrders) if _is_ok(exchange) else None
            if page is None:
                raise self._unavailable(exchange)
            found += map(_shown, page.orders)
            if page.next is None:
                return found
            path = f"/orders?open=true&after={quoted(page.next, safe='')}"
        raise VenueUnavailable(f"{self._name}: the open orders do not end")

    async def reports(self, after: int, limit: int) -> ReportPage:
        """The next execution reports; the broker waits a short while when there are none."""
        exchange = await self._ask(f"/reports?after={after}&limit={limit}", PAGE_BYTES_MAX)
        page = decoded(exchange.body, Reports) if _is_ok(exchange) else None
        if page is None:
            # The place is kept even when a report cannot be read: a fill that is skipped is a fill that is lost.
            if not self._reports_fail:
                log.error("a venue's reports cannot be read", venue=self._name, error=_described(exchange))
            self._reports_fail = True
            await asyncio.sleep(REST_SECONDS)
            return ReportPage((), after)
        self._reports_fail = False
        if not page.reports:
            return ReportPage((), after)
        return ReportPage([self._report(report) for report in page.reports], page.last_number)

    def quote(self, symbol: str) -> Quote | None:
        """None: the market is not known without asking."""
        return None

    async def ask_quote(self, symbol: str) -> Quote | None:
        """The market right now, or none where the broker has none; raises VenueUnavailable."""
        exchange = await self._ask(f"/quotes/{quoted(symbol, safe='')}", ORDER_BYTES_MAX)
        if isinstance(exchange, BrokerResponse) and exchange.status == 404:
            return None
        shown = decoded(exchange.body, QuoteResponse) if _is_ok(exchange) else None
        if shown is None or shown.symbol != symbol or not shown.ask >= shown.bid > 0:
            raise self._unavailable(exchange)
        return Quote(bid=canonical(shown.bid), ask=canonical(shown.ask))

    async def _send(
        self, path: str, order: Order, body: bytes = b"", on_departure: OnDeparture = ignore_departure
    ) -> Exchange:
        return await self._sends.ask(
            "POST",
            path,
            body=body,
            on_departure=on_departure,
            headers={"Content-Type": "application/json", IDEMPOTENCY_HEADER: order.venue_client_order_id},
            answer_seconds=self._answer_seconds[order.time_in_force],
            bytes_max=ORDER_BYTES_MAX,
        )

    async def _ask(self, path: str, bytes_max: int) -> Exchange:
        return await self._questions.ask("GET", path, answer_seconds=QUESTION_SECONDS, bytes_max=bytes_max)

    async def _find(self, client_id: VenueClientOrderId) -> OrderResponse | None:
        exchange = await self._ask(_path(client_id), ORDER_BYTES_MAX)
        if _is_ok(exchange):
            answer = decoded(exchange.body, OrderResponse)
            if answer is not None and client_id == (answer.client_order_id or answer.idempotency_key):
                return answer
        elif isinstance(exchange, BrokerResponse) and exchange.status == 404:
            problem = decoded(exchange.body, ErrorResponse)
            # Any other 404 comes from something that knows of no orders at all.
            if problem is not None and problem.error == UNKNOWN_ORDER:
                return None
        raise self._unavailable(exchange)

    async def _processed_before(self, order: Order) -> Accepted | None:
        """The order that a 409 speaks of, once the broker shows that it is this one."""
        if self._capabilities.lookup == "none":
            return None
        try:
            answer = await self._find(order.venue_client_order_id)
        except VenueUnavailable:
            return None
        if answer is None or not shows(order, answer):
            return None
        return Accepted(answer.broker_order_id, already_processed=True)

    def _message(self, order: Order) -> PlaceOrder:
        promised = self._capabilities
        return PlaceOrder(
            idempotency_key=order.venue_client_order_id,
            client_order_id=order.venue_client_order_id,
            symbol=order.symbol,
            intent=order.side,
            qty=order.qty,
            type=order.type,
            time_in_force=order.time_in_force,
            limit_price=order.price,
            stop_price=order.stop_price,
            trace_id=order.order_id,
            meta={"source": "Switchyard"},
            # From when the attempt was committed: a sender that was paused since then must be too late.
            expires_at=order.updated_at + promised.acceptance_window if promised.request_expiry else UNSET,
        )

    def _report(self, report: Report) -> ExecutionReport:
        return ExecutionReport(
            exec_id=report.exec_id,
            venue=self._name,
            venue_client_order_id=VenueClientOrderId(report.client_order_id),
            venue_order_id=report.broker_order_id,
            status=REPORT_STATUS[report.status],
            last_qty=canonical(report.last_qty),
            last_price=None if report.last_price is None else canonical(report.last_price),
            filled_qty_total=canonical(report.filled_qty),
            reason=report.reason,
            at=report.at,
        )

    def _unavailable(self, exchange: Exchange) -> VenueUnavailable:
        return VenueUnavailable(f"{self._name}: {_described(exchange)}")


def _shown(answer: OrderResponse) -> VenueOrder:
    return VenueOrder(
        venue_client_order_id=VenueClientOrderId(answer.client_order_id or answer.idempotency_key),
        venue_order_id=answer.broker_order_id,
        status=REPORT_STATUS[answer.status],
        filled_qty=canonical(answer.filled_qty),
        fills=tuple(
            VenueFill(exec_id=fill.exec_id, qty=canonical(fill.qty), price=canonical(fill.price), at=fill.at)
            for fill in answer.fills
        ),
    )


def _path(client_id: VenueClientOrderId) -> str:
    return f"/orders/{quoted(client_id, safe='')}"


def _is_ok(exchange: Exchange) -> TypeGuard[BrokerResponse]:
    return isinstance(exchange, BrokerResponse) and exchange.status == 200


def _described(exchange: Exchange) -> str:
    match exchange:
        case BrokerResponse(200):
            return "the answer cannot be read"
        case BrokerResponse(status):
            return f"HTTP {status}"
        case NotSent(code, detail) | Lost(code, detail):
            return described(code, detail)
