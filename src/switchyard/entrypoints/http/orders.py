"""The routes of `/orders`, amends included (ADR 23), and an account's events (seed 001 section 1).

Reads orders and events through `Queries`; places and cancels through the services of the intake.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, get_args

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope

from switchyard.domain.errors import InvalidField, InvalidKey, NotFound, QueueDelayed
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders.explain import EVENTS_MAX, explain_order
from switchyard.domain.orders.keys import checked_key
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import Order, Side, snapshot
from switchyard.entrypoints.http.errors import (
    JSON,
    REPLAYED,
    InvalidHeader,
    WireResponse,
    error_response,
    json_response,
    starlette_response,
)
from switchyard.entrypoints.http.queries import (
    EventCursor,
    choices,
    event_cursor,
    instant,
    only,
    order_cursor,
    whole_number,
)
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header, repeated_authorization
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.flow.intake.amends import AmendService
from switchyard.flow.intake.derived import DerivedOrderService, DerivedResult
from switchyard.flow.intake.orders import OrderService
from switchyard.flow.routing.window import AdmissionWindow
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT
from switchyard.ports.queries import OrderFilter, Queries
from switchyard.telemetry.traces import annotate


class RequestKeys(NamedTuple):
    """What a request says about its own identity."""

    key: str | None
    derives: bool | None


def request_keys(scope: Scope) -> RequestKeys:
    """Return both headers; raises InvalidKey and InvalidHeader for a malformed or repeated one."""
    key = derives = None
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            if key is not None:
                raise InvalidKey("must be given once")
            key = checked_key(value.decode("latin-1"))
        elif name == b"idempotency-derive":
            if derives is not None:
                raise InvalidHeader("Idempotency-Derive", "must be given once")
            derives = header_boolean("Idempotency-Derive", value)
    return RequestKeys(key, derives)


def header_boolean(header: str, value: bytes) -> bool:
    """Return the value of a header that is true or false."""
    lowered = value.lower()
    if lowered not in (b"true", b"false"):
        raise InvalidHeader(header, "must be true or false")
    return lowered == b"true"


def derived_response(result: DerivedResult) -> WireResponse:
    """A new order is answered as without a derived key; a duplicate names the request that it repeats."""
    if result.status == "placed":
        return json_response(202, {"orderId": result.order_id, "status": "ACCEPTED", "requestId": result.request_id})
    return json_response(200, result, REPLAYED)


ORDERS_PAGE_MAX = 500
EVENTS_PAGE_MAX = 1_000
TURNED_AWAY = error_response(QueueDelayed("new orders wait longer than 1 s for those before them"))
_STATUSES: tuple[Status, ...] = get_args(Status)
_SIDES: tuple[Side, ...] = get_args(Side)


class OrderRoutes:
    """`POST /orders` as a bare ASGI handler; the other routes as Starlette's."""

    def __init__(
        self,
        *,
        service: OrderService,
        derived_service: DerivedOrderService,
        can_derive: bool,
        derives_for: Callable[[AccountId], bool],
        check_names: Callable[[AccountId, str], Sequence[str]],
        doubt_of: Callable[[OrderId], Awaitable[str | None]],
        queries: Queries,
        window: AdmissionWindow,
        tokens: TokenVerifier,
    ) -> None:
        """`can_derive`: whether the settings allow derived keys; `derives_for`: the accounts that always get one.

        `check_names`: the pre-trade checks of an account's order in a symbol. `doubt_of`: how the doubt about an order
        ends, in a sentence.
        """
        self._service = service
        self._derived_service = derived_service
        self._can_derive = can_derive
        self._derives_for = derives_for
        self._check_names = check_names
        self._doubt_of = doubt_of
        self._queries = queries
        self._window = window
        self._tokens = tokens
        self.routes = [
            Route("/orders", self._list),
            Route("/orders", self._post, methods=["POST"]),
            Route("/orders/{order_id}", self._show),
            Route("/orders/{order_id}/cancel", self._cancel, methods=["POST"]),
            Route("/orders/{order_id}/events", self._order_events),
            Route("/orders/{order_id}/explain", self._explain),
            Route("/accounts/{account_id}/events", self._account_events),
        ]

    async def _post(self, request: Request) -> Response:
        """Serve `POST /orders` in an application that does not call `post` itself, as the gateway does."""
        return starlette_response(await self.post(request.scope, request.receive))

    async def post(self, scope: Scope, receive: Receive) -> WireResponse:
        """Serve `POST /orders`."""
        authorization = key = None
        derives: bool | None = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                if authorization is not None:
                    raise repeated_authorization()
                authorization = value
            elif name == b"idempotency-key":
                if key is not None:
                    raise InvalidKey("must be given once")
                key = checked_key(value.decode("latin-1"))
            elif name == b"idempotency-derive":
                if derives is not None:
                    raise InvalidHeader("Idempotency-Derive", "must be given once")
                derives = header_boolean("Idempotency-Derive", value)
        account = self._tokens.verify(authorization)
        if self._window.turns_away(account):
            return TURNED_AWAY  # before its body is read: under overload a rejection must cost little
        is_dry_run = _is_dry_run(scope["query_string"]) if scope["query_string"] else False
        body = parse_object(await read_body(receive))
        if is_dry_run:
            return json_response(200, await self._service.dry_run(account, body))
        if key is None and (derives or self._derives_for(account)):
            if not self._can_derive:
                # A caller that asks for derived keys expects protection, so reject instead of placing an unprotected
                # order for each repeat.
                raise InvalidHeader("Idempotency-Derive", "derived keys are disabled here: send an Idempotency-Key")
            return derived_response(await self._derived_service.place(account, body))
        placement = await self._service.place(account, body, key)
        content = b'{"orderId":"%b","status":"ACCEPTED"}' % placement.order_id.encode()
        headers = [JSON, (b"content-length", b"%d" % len(content))]
        if placement.replayed:
            headers.append(REPLAYED)
            annotate(order_id=placement.order_id, replayed=True)
        return WireResponse(202, headers, content)

    async def _list(self, request: Request) -> Response:
        account = self._account(request)
        query = request.query_params
        only(query, ("status", "symbol", "side", "strategy", "clientOrderId", "limit", "cursor"))
        limit = whole_number(query, "limit", 100, 1, ORDERS_PAGE_MAX)
        statuses = choices(query, "status", _STATUSES)
        sides = choices(query, "side", _SIDES)
        orders = await self._queries.orders(
            OrderFilter(
                account_id=account,
                statuses=tuple(status for status in _STATUSES if status in statuses),
                symbol=query.get("symbol"),
                side=sides[0] if len(sides) == 1 else None,
                strategy=query.get("strategy"),
                client_order_id=query.get("clientOrderId"),
                before=order_cursor(query),
                limit=limit + 1,  # one more shows whether there is another page
            )
        )
        page = orders[:limit]
        body = {
            "accountId": account,
            "orders": [snapshot(order) for order in page],
            "nextCursor": page[-1].order_id if len(orders) > limit else None,
        }
        return starlette_response(json_response(200, body))

    async def _show(self, request: Request) -> Response:
        order = await self._own_order(request)
        # The version, for `If-Match` of an amend.
        return starlette_response(json_response(200, snapshot(order), (b"etag", b'"%d"' % order.version)))

    async def _cancel(self, request: Request) -> Response:
        account = self._account(request)
        order_id = OrderId(request.path_params["order_id"])
        await self._service.cancel(account, order_id)
        return starlette_response(json_response(202, {"orderId": order_id, "status": "CANCEL_REQUESTED"}))

    async def _order_events(self, request: Request) -> Response:
        order = await self._own_order(request)
        return await self._events(request, "orderId", order.order_id, order_id=order.order_id)

    async def _explain(self, request: Request) -> Response:
        order = await self._own_order(request)
        only(request.query_params, ())
        # One more shows whether there are others.
        events = await self._queries.events_after(0, order_id=order.order_id, limit=EVENTS_MAX + 1)
        checks = self._check_names(order.account_id, order.symbol)
        doubt = await self._doubt_of(order.order_id)
        return starlette_response(json_response(200, explain_order(order, events, checks, doubt)))

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
        only(query, ("limit", "since", "after", "cursor"))
        limit = whole_number(query, "limit", 100, 1, EVENTS_PAGE_MAX)
        start = await self._start(instant(query, "since"), instant(query, "after"))
        cursor = event_cursor(query, "cursor")
        if cursor is None:
            # A time names where to begin, so reading goes on from there; without one the newest events come first.
            cursor = EventCursor(True, 0) if start else EventCursor(False, SEQ_LIMIT)
        # One more shows whether there is another page; a full page of the database counts as if there were.
        size = min(limit + 1, PAGE_MAX)
        if cursor.forward:
            page = await self._queries.events_after(
                max(start, cursor.number), order_id=order_id, account_id=account_id, limit=size
            )
            events = page[:limit]
        else:
            page = await self._queries.last_events(
                order_id=order_id, account_id=account_id, after=start, before=cursor.number, limit=size
            )
            events = page[-limit:]
        next_cursor = "null"
        if len(page) == size:
            next_cursor = f'"after:{events[-1].seq}"' if cursor.forward else f'"before:{events[0].seq}"'
        lines = ",".join([event.line for event in events])
        body = f'{{"{name}":"{value}","events":[{lines}],"nextCursor":{next_cursor}}}'
        return Response(body, media_type="application/json")

    async def _start(self, since: datetime | None, after: datetime | None) -> int:
        """Return the number after which the events lie that `since` and `after` select; 0 for all."""
        starts = []
        if since is not None:
            starts.append(since)
        if after is not None:
            starts.append(after + timedelta(microseconds=1))  # the resolution of an event's time
        return await self._queries.first_seq_at(max(starts)) - 1 if starts else 0

    def _account(self, request: Request) -> AccountId:
        return self._tokens.verify(authorization_header(request.scope))

    async def _own_order(self, request: Request) -> Order:
        account = self._account(request)
        order = await self._queries.order(OrderId(request.path_params["order_id"]))
        if order is None or order.account_id != account:
            raise NotFound
        return order


def _is_dry_run(query_string: bytes) -> bool:
    """Return whether to check the order only; a misspelt parameter must not place it."""
    query = QueryParams(query_string)
    only(query, ("dryRun",))
    values = query.getlist("dryRun")
    if len(values) != 1 or values[0] not in ("true", "false"):
        raise InvalidField("dryRun", "must be true or false, once")
    return values[0] == "true"


# An entity tag with the order's version, as `GET /orders/{orderId}` gives it; the quotes may be left out.
_VERSION = re.compile(r'"?([1-9][0-9]{0,8})"?')


class AmendRoutes:
    """One route: the answer says that the amend is stored, and what became of it so far."""

    def __init__(
        self,
        service: AmendService,
        tokens: TokenVerifier,
        *,
        can_derive: bool,
        derives_for: Callable[[AccountId], bool],
    ) -> None:
        """`can_derive`, `derives_for`: as in `OrderRoutes`."""
        self._service = service
        self._tokens = tokens
        self._can_derive = can_derive
        self._derives_for = derives_for
        self.routes = [Route("/orders/{order_id}", self._patch, methods=["PATCH"])]

    async def _patch(self, request: Request) -> Response:
        account = self._tokens.verify(authorization_header(request.scope))
        key, version = self._key(request, account), _version(request)
        body = parse_object(await read_body(request.receive))
        order_id = OrderId(request.path_params["order_id"])
        amendment = await self._service.amend(account, order_id, body, key, version=version)
        headers = (REPLAYED,) if amendment.replayed else ()
        return starlette_response(json_response(202, amendment.answer, *headers))

    def _key(self, request: Request, account: AccountId) -> str | None:
        """The request's key; none where it is to be recognised by its content."""
        text = _single(request, "Idempotency-Key")
        if text is not None:
            return checked_key(text)
        derives = _single(request, "Idempotency-Derive")
        if derives is not None and derives.lower() not in ("true", "false"):
            raise InvalidHeader("Idempotency-Derive", "must be true or false")
        if (derives or "").lower() != "true" and not self._derives_for(account):
            raise InvalidKey("required for an amend; or send Idempotency-Derive: true")
        if not self._can_derive:
            raise InvalidHeader("Idempotency-Derive", "derived keys are disabled here: send an Idempotency-Key")
        return None


def _version(request: Request) -> int | None:
    """The version in `If-Match`; none where any version may be amended."""
    text = _single(request, "If-Match")
    if text is None or text == "*":
        return None
    matched = _VERSION.fullmatch(text)
    if matched is None:
        raise InvalidHeader("If-Match", 'must be the order\'s version, such as "3", or *')
    return int(matched[1])


def _single(request: Request, name: str) -> str | None:
    values = request.headers.getlist(name)
    if len(values) > 1:
        if name == "Idempotency-Key":
            raise InvalidKey("must be given once")
        raise InvalidHeader(name, "must be given once")
    return values[0] if values else None
