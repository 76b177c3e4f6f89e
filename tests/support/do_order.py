"""Requests to `/do/order`, towards a gateway in the test's process or in one of its own."""

import json
from typing import Any

import aiohttp

from switchyard.domain.do_order import DO_ORDER
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId
from tests.support.contract import Contract
from tests.support.gateway import CheckedResponse, RunningGateway
from tests.support.process import Process

PATH = "/do/order"
MARKET: dict[str, Any] = {"order_id": "ord-20250824-0001", "instrument": "USDJPY", "side": "BUY", "qty": 0.1}
# Far below any market: it rests.
RESTING: dict[str, Any] = {"price": 1, "time_in_force": "GTC"}
# Far above any market: it is filled at once, and may wait for that as long as it takes.
PATIENT: dict[str, Any] = {"price": 1000, "time_in_force": "GTC"}


def body(key: str, **changes: Any) -> dict[str, Any]:
    """A market order of 0.1 lots; a change to 'absent' leaves a member out."""
    members = MARKET | {"idempotency_key": key} | changes
    return {name: value for name, value in members.items() if value != "absent"}


async def do_order(gateway: RunningGateway, key: str, *, account: str | None = None, **changes: Any) -> CheckedResponse:
    """Ask for an order under a key, without a token unless there is an account."""
    headers = {"Idempotency-Key": key}
    return await gateway.request("POST", PATH, account=account, headers=headers, body=body(key, **changes))


async def post(process: Process, key: str, **changes: Any) -> CheckedResponse:
    """The same, towards a process."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(process.url + PATH, json=body(key, **changes), headers={"Idempotency-Key": key}) as response,
    ):
        answer = CheckedResponse(response.status, response.headers.copy(), await response.read())
    Contract().check("POST", PATH, answer.status, answer.headers, answer.body)
    return answer


async def key_entry(gateway: RunningGateway, key: str, account: str = "do") -> KeyEntry:
    """What the key store has of a key."""
    entry = await gateway.engine._database.keys.entry(AccountId(account), DO_ORDER, key)
    assert entry is not None
    return entry


def error(answer: CheckedResponse) -> tuple[int, str]:
    """Status and code of an error."""
    return answer.status, json.loads(answer.body)["error"]
