"""Post orders to gateway processes, with a key or a derived key."""

from datetime import timedelta
from typing import Any

import aiohttp

from switchyard.adapters.system_clock import SystemClock
from switchyard.entrypoints.http.transport.auth import issue_token
from tests.support.memory.clock import ManualClock
from tests.support.process import SECRET, Process

BODY = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}


def bearer(account: str) -> dict[str, str]:
    """Return a header with a token that is valid on a gateway whose clock is hours off."""
    two_days_ago = ManualClock(SystemClock().now() - timedelta(days=2))
    return {"Authorization": f"Bearer {issue_token(SECRET, account, clock=two_days_ago, ttl=timedelta(days=5))}"}


async def post(
    session: aiohttp.ClientSession, gateway: Process, headers: dict[str, str], **changes: Any
) -> dict[str, Any]:
    """Return the answer's body; the status must be 202 (placed) or 200 (duplicate)."""
    async with session.post(f"{gateway.url}/orders", json={**BODY, **changes}, headers=headers) as response:
        answer: dict[str, Any] = await response.json()
    assert response.status in (200, 202), answer
    return answer


async def count_orders(session: aiohttp.ClientSession, gateway: Process, headers: dict[str, str]) -> int:
    """Return how many orders the account has, up to one page."""
    async with session.get(f"{gateway.url}/orders?limit=500", headers=headers) as response:
        return len((await response.json())["orders"])
