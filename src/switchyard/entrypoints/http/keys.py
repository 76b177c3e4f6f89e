"""The headers that identify a request: `Idempotency-Key` and `Idempotency-Derive`."""

from typing import NamedTuple

from starlette.types import Scope

from switchyard.domain.errors import InvalidKey
from switchyard.domain.orders.keys import checked_key
from switchyard.entrypoints.http.errors import REPLAYED, InvalidHeader, WireResponse, json_response
from switchyard.flow.intake.derived import DerivedResult


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
