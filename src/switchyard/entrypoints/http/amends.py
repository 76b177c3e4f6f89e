"""`PATCH /orders/{orderId}`: amends of open orders (ADR 23)."""

import re
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.domain.errors import InvalidKey
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders.keys import checked_key
from switchyard.entrypoints.http.errors import REPLAYED, InvalidHeader, json_response, starlette_response
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.flow.intake.amends import AmendService

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
