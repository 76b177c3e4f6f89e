"""The routes of the kill switch, for tokens with the scope `admin:kill`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.domain.ids import KillId
from switchyard.domain.risk.kills import ClearRequest, ScopeRequest
from switchyard.domain.values import converted
from switchyard.entrypoints.http.errors import json_response, starlette_response
from switchyard.entrypoints.http.queries import only, order_cursor, whole_number
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.flow.kill.switch import ORDERS_MAX, WAIT_SECONDS_MAX, KillRequest, KillSwitch
from switchyard.ports.journal import PAGE_MAX

KILL_SCOPE = "admin:kill"
# Long enough for most venues to answer a cancel, short enough for a person who waits.
WAIT_SECONDS = 2


class AdminRoutes:
    """`/admin/kill` and `/admin/kills`."""

    def __init__(self, switch: KillSwitch, tokens: TokenVerifier) -> None:
        self._switch = switch
        self._tokens = tokens
        self.routes = [
            Route("/admin/kill", self._set, methods=["POST"]),
            Route("/admin/kills", self._list),
            Route("/admin/kill/{kill_id}", self._show),
            Route("/admin/kill/{kill_id}/clear", self._clear, methods=["POST"]),
        ]

    async def _set(self, request: Request) -> Response:
        by = self._operator(request)
        query = request.query_params
        only(query, ("wait",))
        wait = whole_number(query, "wait", WAIT_SECONDS, 0, int(WAIT_SECONDS_MAX))
        body = converted(parse_object(await read_body(request.receive)), ScopeRequest)
        kill = await self._switch.set(KillRequest.of(body, by))
        return starlette_response(json_response(200, await self._switch.settled_state(kill.kill_id, wait)))

    async def _show(self, request: Request) -> Response:
        self._operator(request)
        query = request.query_params
        only(query, ("limit", "cursor"))
        limit = whole_number(query, "limit", ORDERS_MAX, 1, PAGE_MAX)
        state = await self._switch.state(_kill_id(request), after=order_cursor(query), limit=limit)
        return starlette_response(json_response(200, state))

    async def _clear(self, request: Request) -> Response:
        by = self._operator(request)
        only(request.query_params, ())
        body = converted(parse_object(await read_body(request.receive)), ClearRequest)
        kill = await self._switch.clear(_kill_id(request), by, body.reason)
        return starlette_response(json_response(200, await self._switch.settled_state(kill.kill_id, 0)))

    async def _list(self, request: Request) -> Response:
        self._operator(request)
        query = request.query_params
        only(query, ("limit", "cursor"))
        limit = whole_number(query, "limit", 100, 1, PAGE_MAX)
        before = whole_number(query, "cursor", 0, 1, 10**18 - 1, digits_max=18) or None
        # One more shows whether there is another page; a full page of the database counts as if there were.
        size = min(limit + 1, PAGE_MAX)
        kills = await self._switch.newest(before=before, limit=size)
        page = kills[:limit]
        body = {"kills": page, "nextCursor": str(page[-1].position) if len(kills) == size else None}
        return starlette_response(json_response(200, body))

    def _operator(self, request: Request) -> str:
        return self._tokens.subject_with(authorization_header(request.scope), KILL_SCOPE)


def _kill_id(request: Request) -> KillId:
    return KillId(request.path_params["kill_id"])
