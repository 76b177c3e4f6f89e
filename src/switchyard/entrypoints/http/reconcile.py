"""`GET /reconcile` of an account, and the routes of operators about breaks (scope `admin:reconcile`)."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.domain.errors import InvalidField, NotFound
from switchyard.domain.ids import AccountId
from switchyard.domain.reconcile.breaks import BREAK_STATES, CURRENT_STATES, AdoptRequest, BreakState, ExplainRequest
from switchyard.domain.values import converted
from switchyard.entrypoints.http.errors import json_response, starlette_response
from switchyard.entrypoints.http.queries import choices, only, whole_number
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.flow.reconcile.service import ROWS_MAX, ReconcileService
from switchyard.ports.books import BREAKS_MAX, BreakFilter

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
