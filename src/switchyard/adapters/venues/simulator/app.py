"""The simulator's HTTP interface: the broker's protocol, and `/admin/faults` to make it go wrong."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from switchyard.adapters.venues.simulator.answers import (
    SILENCE,
    HangUp,
    Sender,
    SimulatorResponse,
    answer,
    problem,
    spoiled,
)
from switchyard.adapters.venues.simulator.broker import Broker, Conflict
from switchyard.adapters.venues.simulator.faults import FaultPlan, Faults, changed
from switchyard.adapters.venues.simulator.log import EventLog
from switchyard.adapters.venues.simulator.orders import HeldOrder, as_answer, is_same
from switchyard.adapters.venues.simulator.reporting import Reporting
from switchyard.adapters.venues.wire import (
    IDEMPOTENCY_HEADER,
    ORDER_FINAL,
    REQUEST_EXPIRED,
    UNKNOWN_ORDER,
    AmendOrder,
    OpenOrders,
    PlaceOrder,
    QuoteResponse,
)
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Lookup

BODY_BYTES_MAX = 64 * 1024
PAGE_MAX = 1_000
OPEN_ORDERS_PAGE = 500
RETRY_AFTER = (b"retry-after", b"1")

_decode_order = msgspec.json.Decoder(PlaceOrder).decode
_decode_amend = msgspec.json.Decoder(AmendOrder).decode


class SimulatorApp:
    """One ASGI application; every answer waits until all that it rests on is on the disk."""

    def __init__(
        self,
        *,
        broker: Broker,
        reporting: Reporting,
        log: EventLog,
        plan: FaultPlan,
        clock: Clock,
        lookup: Lookup,
        hang_up: HangUp,
        refuse_connections: Callable[[float], None],
    ) -> None:
        self._broker = broker
        self._reporting = reporting
        self._log = log
        self._plan = plan
        self._clock = clock
        self._lookup = lookup
        self._hang_up = hang_up
        self._refuse_connections = refuse_connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert scope["type"] == "http"
        sender = Sender(scope, receive, send, self._hang_up)
        body = await _read(receive)
        if body is None:
            await sender.send(problem(413, "BODY_TOO_LARGE", f"bodies are limited to {BODY_BYTES_MAX} bytes"))
            return
        said = await self._answer(scope, body)
        await self._log.synced()
        if said.body is None or scope["method"] not in ("POST", "PATCH") or scope["path"].startswith("/admin/"):
            await sender.send(said)
        elif self._plan.hits("close_mid_body"):
            await sender.send_half(said)
        elif pause_seconds := self._plan.seconds("slow_bytes"):
            await sender.send_slowly(said, pause_seconds)
        else:
            await sender.send(said)

    async def _answer(self, scope: Scope, body: bytes) -> SimulatorResponse:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        match (scope["method"], *scope["path"].strip("/").split("/")):
            case ("POST", "orders"):
                return self._place(scope, body)
            case ("POST", "orders", client_order_id, "cancel"):
                return self._cancel(client_order_id)
            case ("PATCH", "orders", client_order_id):
                return self._amend(client_order_id, body)
            case ("GET", "orders", client_order_id):
                return self._look_up(client_order_id)
            case ("GET", "orders") if query.get("open") == "true":
                return self._open_orders(query)
            case ("GET", "reports"):
                after, limit = _place_and_limit(query)
                await self._reporting.wait(after)
                return answer(200, self._reporting.page(after, limit))
            case ("GET", "quotes", *parts):
                symbol = "/".join(parts)  # some have a stroke in them
                quote = self._broker.quote(symbol)
                return answer(200, QuoteResponse(symbol=symbol, bid=quote.bid, ask=quote.ask, at=self._clock.now()))
            case ("GET", "statement"):
                return answer(200, self._broker.statement(*_place_and_limit(query)))
            case ("GET", "health"):
                return answer(200, {"status": "OK"})
            case (method, "admin", "faults"):
                return self._faults(method, body)
            case _:
                return problem(404, "NO_SUCH_ROUTE", "there is nothing here")

    def _place(self, scope: Scope, body: bytes) -> SimulatorResponse:
        try:
            message = _decode_order(body)
        except msgspec.DecodeError as error:
            return problem(422, "VALIDATION_ERROR", str(error))
        if _header(scope, IDEMPOTENCY_HEADER) != message.idempotency_key:
            return problem(422, "IDEMPOTENCY_MISMATCH", f"{IDEMPOTENCY_HEADER} must equal idempotency_key")
        if (rejection := self._unavailable()) is not None:
            return rejection
        if seconds := self._plan.seconds("accept_late"):
            asyncio.get_running_loop().call_later(seconds, self._take_late, message)
            return SILENCE if self._plan.coin("accept_late") else problem(503, "UNAVAILABLE", "try again later")
        if self._is_expired(message):
            return problem(400, REQUEST_EXPIRED, "the order arrived too late")
        held = self._broker.recognised(message.client_order_id)
        if held is not None:
            return self._repeated(held, message)
        if self._plan.hits("reject"):
            return problem(400, "REJECTED_BY_VENUE", "the venue will not have this order")
        try:
            held = self._broker.take(message)
        except Conflict as rejected:
            return problem(400, rejected.reason, "the order is not taken on")
        return spoiled(answer(200, as_answer(held)), self._plan)

    def _repeated(self, held: HeldOrder, message: PlaceOrder) -> SimulatorResponse:
        if not is_same(held, message):
            return problem(409, "ID_REUSED", "this client_order_id stands for another order")
        if self._plan.hits("conflict"):
            return problem(409, "ALREADY_PROCESSED", "this client_order_id was processed before")
        return spoiled(answer(200, as_answer(held)), self._plan)

    def _take_late(self, message: PlaceOrder) -> None:
        if self._broker.recognised(message.client_order_id) is None and not self._is_expired(message):
            try:
                self._broker.take(message)
            except Conflict:
                return  # nobody waits for the answer

    def _is_expired(self, message: PlaceOrder) -> bool:
        return isinstance(message.expires_at, datetime) and message.expires_at < self._clock.now()

    def _cancel(self, client_order_id: str) -> SimulatorResponse:
        if (rejection := self._unavailable()) is not None:
            return rejection
        held = self._broker.cancel(client_order_id)
        if held is None:
            return problem(404, UNKNOWN_ORDER, "there is no such order")
        if held.state.status != "CANCELED":
            return problem(409, ORDER_FINAL, "there is nothing left to cancel")
        return spoiled(answer(200, as_answer(held)), self._plan)

    def _amend(self, client_order_id: str, body: bytes) -> SimulatorResponse:
        try:
            message = _decode_amend(body)
        except msgspec.DecodeError as error:
            return problem(422, "VALIDATION_ERROR", str(error))
        if (rejection := self._unavailable()) is not None:
            return rejection
        held = self._broker.find(client_order_id)
        if held is None:
            return problem(404, UNKNOWN_ORDER, "there is no such order")
        if not held.state.is_open:
            return problem(409, ORDER_FINAL, "there is nothing left to change")
        try:
            self._broker.amend(held, message.qty, message.limit_price)
        except Conflict as rejected:
            return problem(400, rejected.reason, "the order stays as it is")
        return spoiled(answer(200, as_answer(held)), self._plan)

    def _look_up(self, client_order_id: str) -> SimulatorResponse:
        if self._plan.hits("lookup_5xx"):
            return problem(503, "UNAVAILABLE", "try again later")
        held = self._broker.find(client_order_id)
        hidden = held is not None and (
            (self._lookup == "open" and not held.state.is_open)
            or self._broker.age_seconds(held) < self._plan.faults.lagging_lookup
            or (held.state.status == "FILLED" and self._plan.hits("not_found_after_fill"))
        )
        if held is None or hidden:
            return problem(404, UNKNOWN_ORDER, "there is no such order")
        return answer(200, as_answer(held))

    def _open_orders(self, query: dict[str, str]) -> SimulatorResponse:
        if self._plan.hits("lookup_5xx"):
            return problem(503, "UNAVAILABLE", "try again later")
        found = self._broker.open_orders(_place_and_limit(query)[0], OPEN_ORDERS_PAGE)
        last = str(found[-1].state.number) if len(found) == OPEN_ORDERS_PAGE else None
        return answer(200, OpenOrders(orders=tuple(map(as_answer, found)), next=last))

    def _unavailable(self) -> SimulatorResponse | None:
        if self._plan.hits("rate_limit"):
            return problem(429, "RATE_LIMITED", "too many requests", RETRY_AFTER)
        if self._plan.hits("refused_5xx"):
            return problem(503, "UNAVAILABLE", "try again later")
        return None

    def _faults(self, method: str, body: bytes) -> SimulatorResponse:
        match method:
            case "POST":
                try:
                    faults = changed(self._plan.faults, msgspec.json.decode(body, type=dict[str, Any]))
                except msgspec.DecodeError as error:
                    return problem(422, "VALIDATION_ERROR", str(error))
                self.set_faults(faults)
            case "DELETE":
                self.set_faults(Faults())
        return answer(200, self._plan.faults)

    def set_faults(self, faults: Faults) -> None:
        """Go wrong in this way from now on."""
        if faults.refuse_connections:
            self._refuse_connections(faults.refuse_connections)
        self._plan.faults = msgspec.structs.replace(faults, refuse_connections=0.0)


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or none when it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _header(scope: Scope, name: str) -> str | None:
    wanted = name.lower().encode()
    for key, value in scope["headers"]:
        if key == wanted:
            return str(value, "latin-1")
    return None


def _place_and_limit(query: dict[str, str]) -> tuple[int, int]:
    def number(name: str, default: int) -> int:
        text = query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default

    return number("after", 0), max(1, min(number("limit", PAGE_MAX), PAGE_MAX))
