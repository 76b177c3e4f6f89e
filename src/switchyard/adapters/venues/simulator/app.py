"""The HTTP server of the venue simulator: routes, faults in its responses, and its start."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from switchyard.adapters.venues.simulator.broker import Broker, BrokerRejection
from switchyard.adapters.venues.simulator.log import EventLog, FaultPlan, Faults, LogBroken, Reporting, changed
from switchyard.adapters.venues.simulator.orders import BrokerOrder, is_same_order, order_response
from switchyard.adapters.venues.wire import (
    IDEMPOTENCY_HEADER,
    ORDER_FINAL,
    REQUEST_EXPIRED,
    STALE_AMEND,
    TIME_HEADER,
    UNKNOWN_ORDER,
    AmendOrder,
    CanceledAll,
    ErrorResponse,
    OpenOrders,
    PlaceOrder,
    QuoteResponse,
    encode,
)
from switchyard.domain.risk.claims import UTC_DAY, TradingDay
from switchyard.ports.clock import Clock
from switchyard.ports.venue import AmendMode, Dedupe, Lookup

JSON = (b"content-type", b"application/json")
# A truncated JSON object.
NOT_JSON = b'{"broker_order_id": "brk-'

# Aborts the connection of an ASGI request.
HangUp = Callable[[Scope], None]


class SimulatorResponse(msgspec.Struct, frozen=True):
    """A response to send; a body of None closes the connection without a response."""

    status: int
    body: bytes | None
    headers: tuple[tuple[bytes, bytes], ...] = ()


NO_RESPONSE = SimulatorResponse(0, None)


def json_response(status: int, value: object) -> SimulatorResponse:
    """A response with the value as JSON."""
    return SimulatorResponse(status, encode(value))


def error_response(status: int, error: str, message: str = "", *headers: tuple[bytes, bytes]) -> SimulatorResponse:
    """An error response with a code and a message."""
    return SimulatorResponse(status, encode(ErrorResponse(error=error, message=message)), headers)


def with_faults(response: SimulatorResponse, plan: FaultPlan) -> SimulatorResponse:
    """The response to a request that was carried out, or the faulty response that replaces it."""
    if plan.hits("drop_answer"):
        return NO_RESPONSE
    if plan.hits("accepted_5xx"):
        return error_response(500, "INTERNAL_ERROR", "internal error")
    if plan.hits("garbage"):
        return SimulatorResponse(200, NOT_JSON)
    return response


class ResponseWriter:
    """Writes one response to its connection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, hang_up: HangUp, clock: Clock) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._hang_up = hang_up
        self._clock = clock

    async def send(self, response: SimulatorResponse) -> None:
        """Send the complete response, or close the connection if it has no body."""
        if response.body is None:
            await self._close()
            return
        body = await self._start(response)
        await self._send({"type": "http.response.body", "body": body})

    async def send_half(self, response: SimulatorResponse) -> None:
        """Send the head and half of the body, then close the connection."""
        body = await self._start(response)
        await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        await self._close()

    async def send_slowly(self, response: SimulatorResponse, pause_seconds: float) -> None:
        """Send the body byte by byte with a pause after each, until the client disconnects."""
        body = await self._start(response)
        for position in range(len(body)):
            await self._send({"type": "http.response.body", "body": body[position : position + 1], "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._receive()  # the request is complete, so this is a disconnect
                    return
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, response: SimulatorResponse) -> bytes:
        assert response.body is not None
        headers = [
            JSON,
            (b"content-length", str(len(response.body)).encode()),
            (TIME_HEADER.lower().encode(), self._clock.now().isoformat().encode()),
            *response.headers,
        ]
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        return response.body

    async def _close(self) -> None:
        self._hang_up(self._scope)
        # Return only after the server has noticed the disconnect; before that it would send a 500 itself.
        while (await self._receive())["type"] != "http.disconnect":
            pass


BODY_BYTES_MAX = 64 * 1024
PAGE_MAX = 1_000
OPEN_ORDERS_PAGE = 500
RETRY_AFTER = (b"retry-after", b"1")

_decode_order = msgspec.json.Decoder(PlaceOrder).decode
_decode_amend = msgspec.json.Decoder(AmendOrder).decode


class SimulatorApp:
    """The ASGI application; it sends a response only after the log lines of the request are on disk."""

    def __init__(
        self,
        *,
        broker: Broker,
        reporting: Reporting,
        log: EventLog,
        plan: FaultPlan,
        clock: Clock,
        lookup: Lookup,
        amend: AmendMode,
        hang_up: HangUp,
        refuse_connections: Callable[[float], None],
    ) -> None:
        self._broker = broker
        self._reporting = reporting
        self._log = log
        self._plan = plan
        self._clock = clock
        self._lookup = lookup
        self._amend_mode = amend
        self._hang_up = hang_up
        self._refuse_connections = refuse_connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        assert scope["type"] == "http"
        writer = ResponseWriter(scope, receive, send, self._hang_up, self._clock)
        body = await _read(receive)
        if body is None:
            await writer.send(error_response(413, "BODY_TOO_LARGE", f"the body exceeds {BODY_BYTES_MAX} bytes"))
            return
        response = await self._respond(scope, body)
        await self._log.synced()
        if response.body is None or scope["method"] not in ("POST", "PATCH") or scope["path"].startswith("/admin/"):
            await writer.send(response)
        elif self._plan.hits("close_mid_body"):
            await writer.send_half(response)
        elif pause_seconds := self._plan.seconds("slow_bytes"):
            await writer.send_slowly(response, pause_seconds)
        else:
            await writer.send(response)

    async def _respond(self, scope: Scope, body: bytes) -> SimulatorResponse:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        match (scope["method"], *scope["path"].strip("/").split("/")):
            case ("POST", "orders"):
                return self._place(scope, body)
            case ("POST", "orders", "cancel-all"):
                return self._cancel_all()
            case ("POST", "orders", client_order_id, "cancel"):
                return self._cancel(client_order_id)
            case ("PATCH", "orders", client_order_id):
                return self._amend(client_order_id, body)
            case ("GET", "orders", client_order_id):
                return self._look_up(client_order_id)
            case ("GET", "orders") if query.get("open") == "true":
                return self._open_orders(query)
            case ("GET", "reports"):
                if self._plan.hits("reports_5xx"):
                    return error_response(503, "UNAVAILABLE", "try again later")
                after, limit = _cursor_and_limit(query)
                await self._reporting.wait(after)
                return json_response(200, self._reporting.page(after, limit))
            case ("GET", "quotes", *parts):
                symbol = "/".join(parts)  # a symbol may contain a slash
                return await self._quotes([symbol] if symbol else query.get("symbols", "").split(","), whole=not symbol)
            case ("GET", "statement"):
                return json_response(200, self._broker.statement(*_cursor_and_limit(query)))
            case ("GET", "health"):
                return json_response(200, {"status": "OK"})
            case (method, "admin", "faults"):
                return self._faults(method, body)
            case _:
                return error_response(404, "NO_SUCH_ROUTE", "no such method and path")

    async def _quotes(self, symbols: list[str], *, whole: bool) -> SimulatorResponse:
        """The markets of the symbols, or with `whole` false that of a single one."""
        if self._plan.hits("quotes_5xx"):
            return error_response(503, "UNAVAILABLE", "try again later")
        if self._plan.hits("quotes_garbage"):
            return SimulatorResponse(200, b"<html>")
        await asyncio.sleep(self._plan.seconds("slow_quotes"))
        at = self._clock.now() - timedelta(seconds=self._plan.seconds("lagging_quotes"))
        quotes = []
        for symbol in symbols[:PAGE_MAX]:
            quote = self._broker.quote(symbol)
            bid, ask = (quote.ask, quote.bid) if self._plan.hits("crossed_quotes") else (quote.bid, quote.ask)
            quotes.append(QuoteResponse(symbol=symbol, bid=bid, ask=ask, at=at))
        return json_response(200, {"quotes": quotes} if whole else quotes[0])

    def _place(self, scope: Scope, body: bytes) -> SimulatorResponse:
        try:
            message = _decode_order(body)
        except msgspec.DecodeError as error:
            return error_response(422, "VALIDATION_ERROR", str(error))
        if _header(scope, IDEMPOTENCY_HEADER) != message.idempotency_key:
            return error_response(422, "IDEMPOTENCY_MISMATCH", f"{IDEMPOTENCY_HEADER} must equal idempotency_key")
        if (unavailable := self._unavailable()) is not None:
            return unavailable
        if seconds := self._plan.seconds("accept_late"):
            asyncio.get_running_loop().call_later(seconds, self._accept_late, message)
            if self._plan.hits("accept_late_400"):
                return error_response(400, "TRY_AGAIN", "the order may still be accepted")
            return (
                NO_RESPONSE if self._plan.coin("accept_late") else error_response(503, "UNAVAILABLE", "try again later")
            )
        if _is_expired(message, self._clock.now()):
            return error_response(400, REQUEST_EXPIRED, "the order arrived after expires_at")
        order = self._broker.recognised(message.client_order_id)
        if order is not None:
            return self._respond_to_repeat(order, message)
        if self._plan.hits("reject"):
            return error_response(400, "REJECTED_BY_VENUE", "the order is rejected")
        only_half = self._plan.hits("reject_after_part_fill")
        try:
            order = self._broker.accept(message, only_half=only_half)
        except BrokerRejection as rejection:
            return error_response(400, rejection.reason, "the order is rejected")
        if only_half:
            return error_response(403, "FORBIDDEN", "the order is rejected")
        return with_faults(json_response(200, order_response(order)), self._plan)

    def _respond_to_repeat(self, order: BrokerOrder, message: PlaceOrder) -> SimulatorResponse:
        if not is_same_order(order, message):
            return error_response(409, "ID_REUSED", "this client_order_id belongs to another order")
        if self._plan.hits("conflict"):
            return error_response(409, "ALREADY_PROCESSED", "this client_order_id was processed before")
        return with_faults(json_response(200, order_response(order)), self._plan)

    def _accept_late(self, message: PlaceOrder) -> None:
        is_known = self._broker.recognised(message.client_order_id) is not None
        if not is_known and not _is_expired(message, self._clock.now()):
            try:
                self._broker.accept(message)
            except BrokerRejection:
                return  # the response was sent long ago

    def _cancel(self, client_order_id: str) -> SimulatorResponse:
        if (unavailable := self._unavailable()) is not None:
            return unavailable
        order = self._broker.find(client_order_id)
        if order is not None and order.state.is_open and self._plan.hits("cancel_lost"):
            return with_faults(json_response(200, order_response(order)), self._plan)
        order = self._broker.cancel(client_order_id)
        if order is None:
            return error_response(404, UNKNOWN_ORDER, "no order with this client_order_id")
        if order.state.status != "CANCELED" or order.replaced_by is not None:
            return _ended(order, "the order has ended and cannot be canceled")
        return with_faults(json_response(200, order_response(order)), self._plan)

    def _cancel_all(self) -> SimulatorResponse:
        if (unavailable := self._unavailable()) is not None:
            return unavailable
        canceled = CanceledAll(0 if self._plan.hits("cancel_lost") else self._broker.cancel_all())
        return with_faults(json_response(200, canceled), self._plan)

    def _amend(self, client_order_id: str, body: bytes) -> SimulatorResponse:
        try:
            message = _decode_amend(body)
        except msgspec.DecodeError as error:
            return error_response(422, "VALIDATION_ERROR", str(error))
        if (unavailable := self._unavailable()) is not None:
            return unavailable
        if seconds := self._plan.seconds("accept_late"):
            asyncio.get_running_loop().call_later(seconds, self._carry_out, client_order_id, message)
            return (
                NO_RESPONSE if self._plan.coin("accept_late") else error_response(503, "UNAVAILABLE", "try again later")
            )
        if _is_expired(message, self._clock.now()):
            return error_response(400, REQUEST_EXPIRED, "the amend arrived after expires_at")
        if self._plan.hits("reject"):
            return error_response(400, "REJECTED_BY_VENUE", "the order is unchanged")
        response = self._carry_out(client_order_id, message)
        return response if response.status >= 400 else with_faults(response, self._plan)

    def _carry_out(self, client_order_id: str, message: AmendOrder) -> SimulatorResponse:
        """Carry an amend out, unless it was before; `client_order_id` is the id that it names."""
        if self._amend_mode == "none":
            return error_response(422, "NOT_SUPPORTED", "orders cannot be amended here")
        if _is_expired(message, self._clock.now()):
            return error_response(400, REQUEST_EXPIRED, "the amend arrived after expires_at")
        order = self._broker.find(client_order_id)
        if order is None:
            return error_response(404, UNKNOWN_ORDER, "no order with this client_order_id")
        if message.client_order_id is not None:
            amended = self._broker.find(message.client_order_id)
            if amended is not None:
                self._broker.note_repeat(amended)
                return json_response(200, order_response(amended))
        if not order.state.is_open:
            return _ended(order, "the order has ended and cannot be amended")
        if message.client_order_id is not None and client_order_id != (order.state.amended_by or order.client_order_id):
            return error_response(409, STALE_AMEND, "another amend was carried out since")
        try:
            return json_response(200, order_response(self._broker.amend(order, message)))
        except BrokerRejection as rejection:
            return error_response(400, rejection.reason, "the order is unchanged")

    def _look_up(self, client_order_id: str) -> SimulatorResponse:
        if self._plan.hits("lookup_5xx"):
            return error_response(503, "UNAVAILABLE", "try again later")
        order = self._broker.find(client_order_id)
        is_hidden = order is not None and (
            (self._lookup == "open" and not order.state.is_open)
            or self._broker.age_seconds(order, client_order_id) < self._plan.faults.lagging_lookup
            or (order.state.status == "FILLED" and self._plan.hits("not_found_after_fill"))
        )
        if order is None or is_hidden:
            return error_response(404, UNKNOWN_ORDER, "no order with this client_order_id")
        return json_response(200, order_response(order))

    def _open_orders(self, query: dict[str, str]) -> SimulatorResponse:
        if self._plan.hits("lookup_5xx") or self._plan.hits("open_orders_5xx"):
            return error_response(503, "UNAVAILABLE", "try again later")
        page = self._plan.faults.open_orders_page or OPEN_ORDERS_PAGE
        orders = self._broker.open_orders(_cursor_and_limit(query)[0], page)
        last = str(orders[-1].state.number) if len(orders) == page else None
        return json_response(200, OpenOrders(orders=tuple(map(order_response, orders)), next=last))

    def _unavailable(self) -> SimulatorResponse | None:
        if self._plan.hits("rate_limit"):
            return error_response(429, "RATE_LIMITED", "too many requests", RETRY_AFTER)
        if self._plan.hits("refused_5xx"):
            return error_response(503, "UNAVAILABLE", "try again later")
        return None

    def _faults(self, method: str, body: bytes) -> SimulatorResponse:
        match method:
            case "POST":
                try:
                    faults = changed(self._plan.faults, msgspec.json.decode(body, type=dict[str, Any]))
                except msgspec.DecodeError as error:
                    return error_response(422, "VALIDATION_ERROR", str(error))
                self.set_faults(faults)
            case "DELETE":
                self.set_faults(Faults())
        return json_response(200, self._plan.faults)

    def set_faults(self, faults: Faults) -> None:
        """Replace the active faults; those that take effect once do so at this moment."""
        if faults.refuse_connections:
            self._refuse_connections(faults.refuse_connections)
        if faults.restart_report_numbers:
            self._reporting.restart_numbers()
        self._plan.faults = msgspec.structs.replace(faults, refuse_connections=0.0, restart_report_numbers=0.0)


def _ended(order: BrokerOrder, message: str) -> SimulatorResponse:
    return json_response(409, ErrorResponse(error=ORDER_FINAL, message=message, order=order_response(order)))


def _is_expired(message: PlaceOrder | AmendOrder, now: datetime) -> bool:
    return isinstance(message.expires_at, datetime) and message.expires_at < now


async def _read(receive: Receive) -> bytes | None:
    """Return the whole body, or None if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _header(scope: Scope, name: str) -> str | None:
    expected = name.lower().encode()
    for key, value in scope["headers"]:
        if key == expected:
            return str(value, "latin-1")
    return None


def _cursor_and_limit(query: dict[str, str]) -> tuple[int, int]:
    def number(name: str, default: int) -> int:
        text = query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default

    return number("after", 0), max(1, min(number("limit", PAGE_MAX), PAGE_MAX))


class VenueSimulator:
    """A simulated broker; run its `app` in an HTTP server."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        seed: int,
        dedupe: Dedupe,
        dedupe_ttl_seconds: float,
        lookup: Lookup,
        amend: AmendMode = "in_place",
        hang_up: HangUp,
        refuse_connections: Callable[[float], None],
        session: TradingDay = UTC_DAY,
    ) -> None:
        plan = FaultPlan(Faults(), seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._log = EventLog(path)
        reporting = Reporting(self._log, plan, clock)
        self._broker = Broker(
            log=self._log,
            reporting=reporting,
            plan=plan,
            clock=clock,
            seed=seed,
            dedupe=dedupe,
            dedupe_ttl_seconds=dedupe_ttl_seconds,
            amend=amend,
            session=session,
        )
        self.app = SimulatorApp(
            broker=self._broker,
            reporting=reporting,
            log=self._log,
            plan=plan,
            clock=clock,
            lookup=lookup,
            amend=amend,
            hang_up=hang_up,
            refuse_connections=refuse_connections,
        )

    async def start(self, stop: asyncio.Event) -> None:
        """Restore the state from the log and start trading; sets `stop` if the log or the market task ends."""
        self._broker.restore(self._log.read())
        self._tasks = [asyncio.create_task(self._log.run()), asyncio.create_task(self._broker.run())]
        for task in self._tasks:
            task.add_done_callback(lambda _: stop.set())

    async def close(self) -> None:
        """Sync the log and stop; raises the error that ended a task, if any."""
        with contextlib.suppress(LogBroken):
            await self._log.synced()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._log.close()
        for result in results:
            if isinstance(result, Exception):
                raise result
