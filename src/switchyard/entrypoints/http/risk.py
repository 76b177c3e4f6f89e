"""`GET /risk/exposure`: what the account's open orders reserve, its positions, and its limits. Reads only."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.entrypoints.http.errors import json_response, starlette_response
from switchyard.entrypoints.http.queries import only
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.flow.risk.limit_claims import LimitClaims
from switchyard.ports.clock import Clock


class RiskRoutes:
    """The routes about risk that every account may read for itself."""

    def __init__(self, limits: LimitClaims, tokens: TokenVerifier, clock: Clock) -> None:
        self._limits = limits
        self._tokens = tokens
        self._clock = clock
        self.routes = [Route("/risk/exposure", self._exposure)]

    async def _exposure(self, request: Request) -> Response:
        account = self._tokens.verify(authorization_header(request.scope))
        only(request.query_params, ("symbol",))
        view = await self._limits.view(account, self._clock.now(), request.query_params.get("symbol"))
        return starlette_response(json_response(200, view))
