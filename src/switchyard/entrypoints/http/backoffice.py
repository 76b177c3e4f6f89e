"""The back office's API (seed 001 section 5): `/health`, `/positions`, `/balances`, `/ledger`, `/stats`, `/metrics`.

Also `/reconcile` and the routes of operators about breaks (scope `admin:reconcile`); the reports are in
`books_reports.py`. Reads the ledger and the consumer's figures; writes what people decide about breaks.
"""

import re
from datetime import datetime, timedelta
from typing import get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.bootstrap import BackOffice
from switchyard.domain.accounts.views import POSITIONS_PAGE_MAX, PositionPage
from switchyard.domain.books.entries import EntryType, shown
from switchyard.domain.errors import InvalidField, NotFound
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.reconcile.breaks import BREAK_STATES, CURRENT_STATES, AdoptRequest, BreakState, ExplainRequest
from switchyard.domain.values import converted
from switchyard.entrypoints.http.books_reports import (
    BALANCES_PAGE_MAX,
    ENTRIES_PAGE_MAX,
    ReportRoutes,
    own_account,
    shown_balances,
    shown_position,
)
from switchyard.entrypoints.http.errors import json_response, starlette_response
from switchyard.entrypoints.http.monitoring import MetricsPage, guarded_routes, probe_routes, sees_details
from switchyard.entrypoints.http.queries import (
    EventCursor,
    choices,
    event_cursor,
    instant,
    money_cursor,
    name_cursor,
    only,
    whole_number,
)
from switchyard.entrypoints.http.transport.auth import BadTokens, TokenVerifier, authorization_header, verifier
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.entrypoints.http.transport.guard import (
    GuardedApp,
    RequestGuard,
    served_names,
)
from switchyard.entrypoints.http.transport.server import HttpServer, connection_caps
from switchyard.flow.reconcile.service import ROWS_MAX, ReconcileService
from switchyard.ports.books import BREAKS_MAX, BreakFilter, EntryFilter
from switchyard.ports.journal import SEQ_LIMIT
from switchyard.settings import Settings

RECONCILE_SCOPE = "admin:reconcile"
BREAKS_PAGE_MAX = BREAKS_MAX - 1
_CURRENCY = re.compile(r"[A-Z0-9]{2,16}")
_BREAK_ID = re.compile(r"brk_[0-9a-f]{24}")


class ReconcileRoutes:
    """The routes."""

    def __init__(self, service: ReconcileService, tokens: TokenVerifier) -> None:
        self._service = service
        self._tokens = tokens
        self.routes = [
            Route("/reconcile", self._reconcile),
            Route("/admin/reconcile", self._compare, methods=["POST"]),
            Route("/admin/breaks", self._list),
            Route("/admin/breaks/{break_id}", self._show),
            Route("/admin/breaks/{break_id}/explain", self._explain, methods=["POST"]),
            Route("/admin/breaks/{break_id}/adopt", self._adopt, methods=["POST"]),
        ]

    async def _reconcile(self, request: Request) -> Response:
        account = self._tokens.verify(authorization_header(request.scope))
        query = request.query_params
        only(query, ("accountId", "limit", "quoteCcy"))
        if query.get("accountId", account) != account:
            raise NotFound
        limit = whole_number(query, "limit", ROWS_MAX, 1, ROWS_MAX)
        quote_ccy = query.get("quoteCcy", "JPY")
        if not _CURRENCY.fullmatch(quote_ccy):
            raise InvalidField("quoteCcy", "must be a currency such as JPY")
        return starlette_response(json_response(200, await self._service.account(account, quote_ccy, limit)))

    async def _compare(self, request: Request) -> Response:
        self._operator(request)
        only(request.query_params, ("full",))
        full = choices(request.query_params, "full", ("true", "false"))[-1:] == ("true",)
        return starlette_response(json_response(200, await self._service.compare(full=full)))

    async def _list(self, request: Request) -> Response:
        self._operator(request)
        query = request.query_params
        only(query, ("state", "accountId", "limit", "cursor"))
        names = choices(query, "state", BREAK_STATES)
        states: tuple[BreakState, ...] = tuple(state for state in BREAK_STATES if state in names) or CURRENT_STATES
        wanted = BreakFilter(
            states=states,
            account_id=AccountId(query["accountId"]) if "accountId" in query else None,
            after=_checked_cursor(query.get("cursor", "")),
            limit=whole_number(query, "limit", 100, 1, BREAKS_PAGE_MAX),
        )
        return starlette_response(json_response(200, await self._service.page(wanted)))

    async def _show(self, request: Request) -> Response:
        self._operator(request)
        only(request.query_params, ())
        return starlette_response(json_response(200, await self._service.show(_break_id(request))))

    async def _explain(self, request: Request) -> Response:
        by = self._operator(request)
        only(request.query_params, ())
        body = converted(parse_object(await read_body(request.receive)), ExplainRequest)
        return starlette_response(json_response(200, await self._service.explain(_break_id(request), by, body.reason)))

    async def _adopt(self, request: Request) -> Response:
        by = self._operator(request)
        only(request.query_params, ())
        body = converted(parse_object(await read_body(request.receive)), AdoptRequest)
        done = await self._service.adopt(_break_id(request), body.account_id, by, body.reason)
        return starlette_response(json_response(200, done))

    def _operator(self, request: Request) -> str:
        return self._tokens.subject_with(authorization_header(request.scope), RECONCILE_SCOPE)


def _checked_cursor(text: str) -> str:
    if text and not _BREAK_ID.fullmatch(text):
        raise InvalidField("cursor", "must be the nextCursor of the previous page, unchanged")
    return text


def _break_id(request: Request) -> str:
    break_id: str = request.path_params["break_id"]
    if not _BREAK_ID.fullmatch(break_id):
        raise NotFound
    return break_id


_TYPES: tuple[EntryType, ...] = get_args(EntryType)


class BackOfficeRoutes:
    """The routes; each account sees its own books."""

    def __init__(self, office: BackOffice, tokens: TokenVerifier, metrics_token: str | None) -> None:
        self._office = office
        self._tokens = tokens
        self._account = own_account(tokens)
        metrics = MetricsPage(office.metrics, office.observe, clock=office.clock, token=metrics_token)
        self.routes = [
            Route("/health", self._show_health),
            *probe_routes(office.readiness, tokens),
            Route("/metrics", metrics.show),
            Route("/positions", self._list_positions),
            Route("/balances", self._list_balances),
            Route("/ledger", self._list_entries),
            Route("/stats", self._show_stats),
            *ReportRoutes(office, tokens, self._account).routes,
        ]

    async def _show_health(self, request: Request) -> Response:
        detailed = sees_details(request, self._tokens)
        problem = self._office.consumer.problem
        if problem is not None:
            body = {"status": "halted", "reason": problem if detailed else "BOOKS_HALTED"}
            return starlette_response(json_response(503, body))
        bus = self._office.kafka_bus
        troubles = {
            "bus": (None if bus is None else bus.trouble, "NOT_READ"),
            "books": (self._office.consumer.trouble, "NOT_BOOKED"),
        }
        found = {name: text if detailed else code for name, (text, code) in troubles.items() if text is not None}
        return starlette_response(json_response(200, {"status": "degraded" if found else "ok", **found}))

    async def _list_positions(self, request: Request) -> Response:
        account = self._account(request, ("accountId", "flat", "limit", "cursor"))
        query = request.query_params
        limit = whole_number(query, "limit", 100, 1, POSITIONS_PAGE_MAX)
        shows_flat = choices(query, "flat", ("true", "false"))[-1:] == ("true",)
        symbol, currency = money_cursor(query)
        found = await self._office.ledger.holdings(account, symbol, currency, limit + 1, flat=shows_flat)
        page = found[:limit]
        body = PositionPage(
            account_id=account,
            positions=tuple(map(shown_position, page)),
            next_cursor=f"after:{page[-1].symbol}:{page[-1].currency}" if len(found) > limit else None,
        )
        return starlette_response(json_response(200, body))

    async def _list_balances(self, request: Request) -> Response:
        account = self._account(request, ("accountId", "limit", "cursor"))
        limit = whole_number(request.query_params, "limit", 100, 1, BALANCES_PAGE_MAX)
        rows = await self._office.ledger.balances(account, name_cursor(request.query_params), limit + 1)
        found = shown_balances(rows)
        page = found[:limit]
        body = {
            "accountId": account,
            "balances": page,
            "nextCursor": f"after:{page[-1].currency}" if len(found) > limit else None,
        }
        return starlette_response(json_response(200, body))

    async def _list_entries(self, request: Request) -> Response:
        account = self._account(request, ("accountId", "orderId", "limit", "since", "after", "type", "cursor"))
        query = request.query_params
        limit = whole_number(query, "limit", 100, 1, ENTRIES_PAGE_MAX)
        since = _start(instant(query, "since"), instant(query, "after"))
        cursor = event_cursor(query, "cursor")
        if cursor is None:
            # A time names where to begin, so reading goes on from there; without one the newest entries come first.
            cursor = EventCursor(True, 0) if since is not None else EventCursor(False, SEQ_LIMIT)
        found = await self._office.ledger.entries(
            EntryFilter(
                account_id=account,
                order_id=OrderId(query["orderId"]) if "orderId" in query else None,
                type=_entry_type(query.get("type")),
                since=since,
                after=cursor.number if cursor.forward else 0,
                before=None if cursor.forward else cursor.number,
                newest=not cursor.forward,
                limit=limit + 1,
            )
        )
        page = found[:limit] if cursor.forward else found[-limit:]
        following = "null"
        if len(found) > limit:
            following = f'"after:{page[-1].number}"' if cursor.forward else f'"before:{page[0].number}"'
        lines = ",".join([shown(entry.text, entry.hash) for entry in page])
        name = msgspec.json.encode(account).decode()
        body = f'{{"accountId":{name},"entries":[{lines}],"nextCursor":{following}}}'
        return Response(body, media_type="application/json")

    async def _show_stats(self, request: Request) -> Response:
        self._account(request, ())
        consumer = self._office.consumer
        await consumer.refresh()
        body = {
            "startedAt": consumer.started_at,
            "processed": consumer.processed,
            "skipped": consumer.skipped,
            "lastEventAt": consumer.last_event_at,
            "bus": "journal" if self._office.kafka_bus is None else "kafka",
            "lastKafkaOffset": consumer.last_offset,
            "ledgerReplay": consumer.replayed,
        }
        return starlette_response(json_response(200, body))


def build_backoffice(settings: Settings, office: BackOffice) -> HttpServer:
    """Build the server of the back office's API; not started yet."""
    tokens = verifier(settings, office.clock, office.metrics)
    routes = [
        *BackOfficeRoutes(office, tokens, settings.metrics_token).routes,
        *ReconcileRoutes(office.reconcile, tokens).routes,
    ]
    app = guarded_routes(routes, BadTokens(office.clock))
    guarded_app = GuardedApp(app, RequestGuard(served_names(settings)), connection_caps(settings, office.metrics))
    return HttpServer(
        guarded_app,
        host=settings.host,
        port=settings.backoffice_port,
        port_setting="SWITCHYARD_BACKOFFICE_PORT",
        caps=guarded_app.caps,
    )


def _start(since: datetime | None, after: datetime | None) -> datetime | None:
    """The earliest time that both parameters allow."""
    starts = [] if since is None else [since]
    if after is not None:
        starts.append(after + timedelta(microseconds=1))  # the resolution of an entry's time
    return max(starts) if starts else None


def _entry_type(text: str | None) -> EntryType | None:
    if text is None:
        return None
    for known in _TYPES:
        if text == known:
            return known
    raise InvalidField("type", f"must be one of {', '.join(_TYPES)}")
