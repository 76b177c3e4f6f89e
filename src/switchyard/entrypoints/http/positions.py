"""`/positions`, `/account`, `/risk/exposure`: what an account has open, how it closes a position or cancels all orders.

Reads through `Accounts` and `LimitClaims`; closes and cancels through the services of the intake.
"""

from collections.abc import Callable
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.accounts.views import (
    ACCOUNT_ORDERS_MAX,
    ACCOUNT_POSITIONS_MAX,
    POSITIONS_PAGE_MAX,
    AccountView,
    PositionPage,
    position_view,
)
from switchyard.domain.errors import NotFound
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import snapshot
from switchyard.entrypoints.http.errors import REPLAYED, InvalidHeader, json_response, starlette_response
from switchyard.entrypoints.http.orders import derived_response, request_keys
from switchyard.entrypoints.http.queries import choices, name_cursor, only, whole_number
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.flow.intake.orders import CancelAllService, CloseService
from switchyard.flow.risk.limit_claims import LimitClaims
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Accounts, Queries, UnfinishedFilter


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


class PositionRoutes:
    """The routes of what an account has open."""

    def __init__(
        self,
        *,
        close_service: CloseService,
        cancel_service: CancelAllService,
        accounts: Accounts,
        queries: Queries,
        limits: LimitClaims,
        clock: Clock,
        can_derive: bool,
        derives_for: Callable[[AccountId], bool],
        tokens: TokenVerifier,
    ) -> None:
        self._close_service = close_service
        self._cancel_service = cancel_service
        self._accounts = accounts
        self._queries = queries
        self._limits = limits
        self._clock = clock
        self._can_derive = can_derive
        self._derives_for = derives_for
        self._tokens = tokens
        self.routes = [
            Route("/positions", self._list),
            Route("/positions/{symbol}/close", self._close, methods=["POST"]),
            Route("/orders/cancel-all", self._cancel_all, methods=["POST"]),
            Route("/account", self._show_account),
        ]

    async def _list(self, request: Request) -> Response:
        account = self._own_account(request, ("accountId", "flat", "limit", "cursor"))
        query = request.query_params
        limit = whole_number(query, "limit", 100, 1, POSITIONS_PAGE_MAX)
        shows_flat = choices(query, "flat", ("true", "false"))[-1:] == ("true",)
        found = await self._positions(account, name_cursor(query), limit + 1, shows_flat)
        page = found[:limit]
        body = PositionPage(
            account_id=account,
            positions=tuple(map(position_view, page)),
            next_cursor=f"after:{page[-1].symbol}" if len(found) > limit else None,
        )
        return starlette_response(json_response(200, body))

    async def _positions(self, account: AccountId, after: str, limit: int, shows_flat: bool) -> list[Position]:
        if not shows_flat:
            return await self._accounts.open_positions(account, after=after, limit=limit)
        return await self._queries.positions(account, after=after or ACCOUNT_TOTAL, limit=limit)

    async def _show_account(self, request: Request) -> Response:
        account = self._own_account(request, ("accountId",))
        positions = await self._accounts.open_positions(account, limit=ACCOUNT_POSITIONS_MAX + 1)
        wanted = UnfinishedFilter(account_id=account, limit=ACCOUNT_ORDERS_MAX + 1)
        orders = await self._accounts.unfinished_orders(wanted)
        view = AccountView(
            account_id=account,
            positions=tuple(map(position_view, positions[:ACCOUNT_POSITIONS_MAX])),
            has_more_positions=len(positions) > ACCOUNT_POSITIONS_MAX,
            orders=tuple(map(snapshot, orders[:ACCOUNT_ORDERS_MAX])),
            has_more_orders=len(orders) > ACCOUNT_ORDERS_MAX,
            exposure=await self._limits.view(account, self._clock.now(), None),
        )
        return starlette_response(json_response(200, view))

    async def _close(self, request: Request) -> Response:
        keys = request_keys(request.scope)
        account = self._own_account(request, ())
        body = parse_object(await read_body(request.receive))
        # A slash in the symbol arrives encoded, so that it cannot lead to another route.
        symbol = unquote(request.path_params["symbol"])
        is_asked = bool(keys.derives) or self._derives_for(account)
        if keys.key is None and is_asked and not self._can_derive:
            raise InvalidHeader("Idempotency-Derive", "derived keys are disabled here: send an Idempotency-Key")
        if keys.key is None and (is_asked or (keys.derives is None and self._can_derive)):
            closed = await self._close_service.close_by_content(account, symbol, body, is_asked=is_asked)
            return starlette_response(derived_response(closed))
        placement = await self._close_service.close(account, symbol, body, keys.key)
        accepted = {"orderId": placement.order_id, "status": "ACCEPTED"}
        return starlette_response(json_response(202, accepted, *([REPLAYED] if placement.replayed else [])))

    async def _cancel_all(self, request: Request) -> Response:
        keys = request_keys(request.scope)
        if keys.derives:
            # Two equal requests within a minute may mean different orders: the second would cancel nothing.
            raise InvalidHeader("Idempotency-Derive", "not possible here: send an Idempotency-Key, or none")
        account = self._own_account(request, ())
        body = parse_object(await read_body(request.receive))
        result, replayed = await self._cancel_service.cancel_all(account, body, keys.key)
        return starlette_response(json_response(202, result, *([REPLAYED] if replayed else [])))

    def _own_account(self, request: Request, parameters: tuple[str, ...]) -> AccountId:
        """Return the token's account; raises NotFound where the query names another one."""
        account = self._tokens.verify(authorization_header(request.scope))
        only(request.query_params, parameters)
        if request.query_params.get("accountId", account) != account:
            raise NotFound
        return account
