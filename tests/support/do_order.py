"""Requests to `/do/order`, to a gateway in the test's process or in a separate process."""

import json
from typing import Any

import aiohttp

from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import DO_ORDER, KeyEntry
from tests.support.contract import Contract
from tests.support.gateway import CheckedResponse, RunningGateway
from tests.support.process import Process

PATH = "/do/order"
MARKET: dict[str, Any] = {"order_id": "ord-20250824-0001", "instrument": "USDJPY", "side": "BUY", "qty": 0.1}
# A price far below the market: the order rests.
RESTING: dict[str, Any] = {"price": 1, "time_in_force": "GTC"}
# A price far above the market and GTC: the order is filled whenever it is sent.
PATIENT: dict[str, Any] = {"price": 1000, "time_in_force": "GTC"}


def body(key: str, **changes: Any) -> dict[str, Any]:
    """Return a market order of 0.1 lots; a change to 'absent' removes a member."""
    members = MARKET | {"idempotency_key": key} | changes
    return {name: value for name, value in members.items() if value != "absent"}


async def do_order(gateway: RunningGateway, key: str, *, account: str | None = None, **changes: Any) -> CheckedResponse:
    """Post an order with a key, with a token only where an account is given."""
    headers = {"Idempotency-Key": key}
    return await gateway.request("POST", PATH, account=account, headers=headers, body=body(key, **changes))


async def post(process: Process, key: str, *, account: str = "do", **changes: Any) -> CheckedResponse:
    """Post an order with a key and a token to a separate process, by default of `DO_DEFAULT_ACCOUNT`."""
    headers = process.headers(account, key=key)
    async with (
        aiohttp.ClientSession() as session,
        session.post(process.url + PATH, json=body(key, **changes), headers=headers) as response,
    ):
        answer = CheckedResponse(response.status, response.headers.copy(), await response.read())
    Contract().check("POST", PATH, answer.status, answer.headers, answer.body)
    return answer


async def key_entry(gateway: RunningGateway, key: str, account: str = "do") -> KeyEntry:
    """Return the key store's entry of a key."""
    entry = await gateway.engine._database.keys.entry(AccountId(account), DO_ORDER, key)
    assert entry is not None
    return entry


def error(answer: CheckedResponse) -> tuple[int, str]:
    """Return an error's HTTP status and code."""
    return answer.status, json.loads(answer.body)["error"]
