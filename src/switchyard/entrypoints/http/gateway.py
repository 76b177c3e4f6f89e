"""The gateway's HTTP interface (seed 001 section 1).

`POST /orders` is handled here by hand, because routing alone would cost as much as everything it does; all other
routes go through Starlette.
"""

from collections.abc import Callable
from typing import get_args

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from switchyard.bootstrap import Desks, Engine
from switchyard.domain.errors import InvalidKey, NotFound, SwitchyardError, Unauthorized
from switchyard.domain.idempotency import checked_key
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.lifecycle import Status
from switchyard.domain.orders import Order, Side, snapshot
from switchyard.entrypoints.http.do_order import DoOrders
from switchyard.entrypoints.http.errors import ErrorBody, WireResponse, answer, error_answer, on_http_error, response
from switchyard.entrypoints.http.monitoring import Monitoring
from switchyard.entrypoints.http.queries import choices, instant, only, whole_number
from switchyard.entrypoints.http.streams import InvalidHeader, StreamEndpoint
from switchyard.entrypoints.http.transport.auth import TokenVerifier
from switchyard.entrypoints.http.transport.bodies import ClientGone, parse_object, read_body
from switchyard.entrypoints.http.transport.protocol import ANSWER
from switchyard.flow.gauges import Gauges
from switchyard.flow.intake.derived import DerivedResult
from switchyard.ports.queries import OrderFilter, Queries
from switchyard.settings import Settings, jwt_secret
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

ORDERS_PAGE_MAX = 500
EVENTS_PAGE_MAX = 1_000
_REPLAYED = (b"idempotent-replayed", b"true")
_REPEATED_TOKEN = Unauthorized("TOKEN_MALFORMED", "Authorization must be given once")
_STATUSES: tuple[Status, ...] = get_args(Status)
_SIDES: tuple[Side, ...] = get_args(Side)


class Gateway:
    """The ASGI application."""

    def __init__(
        self,
        *,
        desks: Desks,
        derives: bool,
        derives_for: Callable[[AccountId], bool],
        do_orders: DoOrders,
        queries: Queries,
        streams: StreamEndpoint,
        tokens: TokenVerifier,
        metrics: Metrics,
        observer: Gauges,
        metrics_token: str | None,
    ) -> None:
        self._desk = desks.orders
        self._derived = desks.derived
        self._derives = derives
        self._derives_for = derives_for
        self._queries = queries
        self._streams = streams
        self._tokens = tokens
        self._metrics = metrics
        self.routes = [
            *Monitoring(metrics=metrics, observer=observer, metrics_token=metrics_token).routes,
            Route("/do/order", do_orders.post, methods=["POST"]),
            Route("/orders", self._list_orders),
            Route("/orders/{order_id}", self._show_order),
            Route("/orders/{order_id}/cancel", self._cancel, methods=["POST"]),
            Route("/orders/{order_id}/events", self._order_events),
            Route("/orders/{order_id}/stream", _Raw(self._order_stream)),
            Route("/accounts/{account_id}/events", self._account_events),
            Route("/stream", _Raw(self._account_stream)),
        ]
        self._rest: ASGIApp = Starlette(
            routes=self.routes, exception_handlers={SwitchyardError: self._on_error, HTTPException: on_http_error}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        if scope["path"] != "/orders" or scope["method"] != "POST":
            await self._rest(scope, receive, send)
            return
        try:
            given = await self._place(scope, receive)
        except SwitchyardError as error:
            given = self._reject(error)
        except ClientGone:
            return
        except Exception:
            log.exception("a request failed in an unexpected way")
            given = answer(500, ErrorBody("ERROR", "INTERNAL_ERROR"))
        at_once = scope.get("extensions", {}).get(ANSWER)
        if at_once is None or not at_once(scope, given.whole()):
            await send({"type": "http.response.start", "status": given.status, "headers": given.headers})
            await send({"type": "http.response.body", "body": given.body})

    async def _place(self, scope: Scope, receive: Receive) -> WireResponse:
        authorization = key = None
        derives: bool | None = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                if authorization is not None:
                    raise _REPEATED_TOKEN
                authorization = value
            elif name == b"idempotency-key":
                if key is not None:
                    raise InvalidKey("must be given once")
                key = checked_key(value.decode("latin-1"))
            elif name == b"idempotency-derive":
                if derives is not None:
                    raise InvalidHeader("Idempotency-Derive", "must be given once")
                derives = _is_true(value)
        account = self._tokens.verify(authorization)
        body = parse_object(await read_body(receive))
        if key is None and (derives or self._derives_for(account)):
            if not self._derives:
                # Whoever asks for protection repeats in good faith: rather no order than one for each repeat.
                raise InvalidHeader("Idempotency-Derive", "no keys are derived here; send an Idempotency-Key")
            return _derived_answer(await self._derived.place(account, body))
        placed = await self._desk.place(account, body, key)
        content = b'{"orderId":"%b","status":"ACCEPTED"}' % placed.order_id.encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        if placed.replayed:
            headers.append(_REPLAYED)
        return WireResponse(202, headers, content)

    async def _list_orders(self, request: Request) -> Response:
        account = self._account(request)
        query = request.query_params
        only(query, ("status", "symbol", "side", "strategy", "clientOrderId", "limit", "cursor"))
        limit = whole_number(query, "limit", 100, 1, ORDERS_PAGE_MAX)
        sides = choices(query, "side", _SIDES)
        wanted = OrderFilter(
            account_id=account,
            statuses=tuple(status for status in _STATUSES if status in choices(query, "status", _STATUSES)),
            symbol=query.get("symbol"),
            side=sides[0] if len(sides) == 1 else None,
            strategy=query.get("strategy"),
            client_order_id=query.get("clientOrderId"),
            before=OrderId(query["cursor"]) if "cursor" in query else None,
            limit=limit + 1,  # one more tells whether there is another page
        )
        found = await self._queries.orders(wanted)
        page = found[:limit]
        body = {
            "accountId": account,
            "orders": [snapshot(order) for order in page],
            "nextCursor": page[-1].order_id if len(found) > limit else None,
        }
        return response(answer(200, body))

    async def _show_order(self, request: Request) -> Response:
        return response(answer(200, snapshot(await self._own_order(request))))

    async def _cancel(self, request: Request) -> Response:
        account = self._account(request)
        order_id = OrderId(request.path_params["order_id"])
        await self._desk.cancel(account, order_id)
        return response(answer(202, {"orderId": order_id, "status": "CANCEL_REQUESTED"}))

    async def _order_events(self, request: Request) -> Response:
        order = await self._own_order(request)
        return await self._events(request, "orderId", order.order_id, order_id=order.order_id)

    async def _account_events(self, request: Request) -> Response:
        account = self._account(request)
        if request.path_params["account_id"] != account:
            raise NotFound
        return await self._events(request, "accountId", account, account_id=account)

    async def _events(
        self,
        request: Request,
        name: str,
        value: str,
        *,
        order_id: OrderId | None = None,
        account_id: AccountId | None = None,
    ) -> Response:
        query = request.query_params
        only(query, ("limit", "since", "after"))
        limit = whole_number(query, "limit", 100, 1, EVENTS_PAGE_MAX)
        since, after = instant(query, "since"), instant(query, "after")
        events = await self._queries.last_events(order_id=order_id, account_id=account_id, limit=limit)
        # Times never go back in a journal: what is new enough is the end of the list.
        lines = [
            event.line
            for event in events
            if (since is None or event.at >= since) and (after is None or event.at > after)
        ]
        body = f'{{"{name}":"{value}","events":[{",".join(lines)}]}}'
        return Response(body, media_type="application/json")

    async def _account_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        account = self._tokens.verify(_authorization(scope))
        await self._streams.account(account, scope, receive, send)

    async def _order_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        account = self._tokens.verify(_authorization(scope))
        await self._streams.order(account, OrderId(scope["path_params"]["order_id"]), scope, receive, send)

    def _account(self, request: Request) -> AccountId:
        return self._tokens.verify(_authorization(request.scope))

    async def _own_order(self, request: Request) -> Order:
        account = self._account(request)
        order = await self._queries.order(OrderId(request.path_params["order_id"]))
        if order is None or order.account_id != account:
            raise NotFound
        return order

    def _reject(self, error: SwitchyardError) -> WireResponse:
        self._metrics.rejected.labels(getattr(error, "reason", "INTERNAL_ERROR")).inc()
        return error_answer(error)

    async def _on_error(self, _request: Request, error: Exception) -> Response:
        assert isinstance(error, SwitchyardError)
        return response(self._reject(error))


def build_gateway(settings: Settings, engine: Engine) -> Gateway:
    """The application over a running engine."""
    tokens = TokenVerifier(
        jwt_secret(settings), clock=engine.wall_clock, audience=settings.jwt_audience, issuer=settings.jwt_issuer
    )
    return Gateway(
        desks=engine.desks,
        derives=settings.idempotency.enabled,
        derives_for=settings.idempotency.derives_for,
        do_orders=DoOrders(
            desk=engine.desks.do_orders,
            tokens=tokens,
            rate=engine.caches.rate,
            default_account=settings.do_default_account,
            needs_token=settings.do_requires_token,
            clock=engine.clock,
            metrics=engine.metrics,
        ),
        queries=engine.queries,
        streams=StreamEndpoint(engine.hub, engine.queries, keepalive_seconds=settings.sse_keepalive.total_seconds()),
        tokens=tokens,
        metrics=engine.metrics,
        observer=engine.observer,
        metrics_token=settings.metrics_token,
    )


def _is_true(value: bytes) -> bool:
    if value.lower() not in (b"true", b"false"):
        raise InvalidHeader("Idempotency-Derive", "must be true or false")
    return value.lower() == b"true"


def _derived_answer(given: DerivedResult) -> WireResponse:
    """A new order is acknowledged as ever; a duplicate is told which request it repeats."""
    if given.status == "placed":
        return answer(202, {"orderId": given.order_id, "status": "ACCEPTED", "requestId": given.request_id})
    return answer(200, given, _REPLAYED)


class _Raw:
    """A handler that writes its response itself; Starlette takes an instance for an ASGI application."""

    def __init__(self, handler: ASGIApp) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405)
        await self._handler(scope, receive, send)


def _authorization(scope: Scope) -> bytes | None:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) > 1:
        raise _REPEATED_TOKEN
    return found[0] if found else None
