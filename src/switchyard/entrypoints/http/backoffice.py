"""The back office's API (seed 001 section 5): `/health`, `/positions`, `/balances`, `/ledger`, `/stats`, `/metrics`.

The reports are in `books_reports.py`.

Reads the ledger and the consumer's figures; writes nothing.
"""

from datetime import datetime, timedelta
from typing import get_args

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.bootstrap import BackOffice
from switchyard.domain.accounts.views import POSITIONS_PAGE_MAX, PositionPage
from switchyard.domain.books.entries import EntryType, shown
from switchyard.domain.errors import InvalidField, SwitchyardError
from switchyard.domain.ids import OrderId
from switchyard.entrypoints.http.book_views import (
    BALANCES_PAGE_MAX,
    ENTRIES_PAGE_MAX,
    own_account,
    shown_balances,
    shown_position,
)
from switchyard.entrypoints.http.books_reports import ReportRoutes
from switchyard.entrypoints.http.errors import json_response, on_http_error, on_switchyard_error, starlette_response
from switchyard.entrypoints.http.exposure import served_names
from switchyard.entrypoints.http.monitoring import MetricsPage, probe_routes, sees_details
from switchyard.entrypoints.http.queries import (
    EventCursor,
    choices,
    event_cursor,
    instant,
    money_cursor,
    name_cursor,
    whole_number,
)
from switchyard.entrypoints.http.reconcile import ReconcileRoutes
from switchyard.entrypoints.http.transport.addresses import ConnectionCaps, Proxies, client_address
from switchyard.entrypoints.http.transport.auth import TokenVerifier, verifier
from switchyard.entrypoints.http.transport.bad_tokens import BadTokens
from switchyard.entrypoints.http.transport.doors import Doors
from switchyard.entrypoints.http.transport.entrance import Entrance
from switchyard.entrypoints.http.transport.server import HttpServer, connections_within_file_limit
from switchyard.ports.books import EntryFilter
from switchyard.ports.journal import SEQ_LIMIT
from switchyard.settings import Settings

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
    bad_tokens = BadTokens(office.clock)

    async def on_error(request: Request, error: Exception) -> Response:
        judged = bad_tokens.judged(error, client_address(request.scope))
        return await on_switchyard_error(request, judged)

    app = Starlette(
        routes=[
            *BackOfficeRoutes(office, tokens, settings.metrics_token).routes,
            *ReconcileRoutes(office.reconcile, tokens).routes,
        ],
        exception_handlers={SwitchyardError: on_error, HTTPException: on_http_error},
    )
    # A redirect would name the host that the request claims.
    app.router.redirect_slashes = False
    caps = ConnectionCaps(
        total_max=connections_within_file_limit(settings.connections_max),
        per_address_max=settings.connections_per_address_max,
        proxies=Proxies(settings.trusted_proxies),
        on_rejection=office.metrics.connections_rejected.inc,
    )
    entrance = Entrance(app, Doors(served_names(settings)), caps)
    return HttpServer(
        entrance,
        host=settings.host,
        port=settings.backoffice_port,
        port_setting="SWITCHYARD_BACKOFFICE_PORT",
        caps=caps,
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
