"""The nemesis's client: posts orders with keys, and keeps a journal of what it was told about each.

Every intent has a quantity of its own, so that the venue's log alone shows how often it was executed.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import aiohttp

from tests.support.process import Process

Told = Literal["ok", "fail", "unknown"]

FIRST_QTY = 1_000
PACE_SECONDS = 0.2
# A paused gateway answers late; the client does not wait for it, and repeats the key.
ANSWER_SECONDS = 8.0
INSIST_MAX = 60
DO_ORDER_INSIST_MAX = 2
DO_ORDER_SHARE = 0.2
REPEAT_SHARE = 0.2


@dataclass
class Intent:
    """One order that the client wants once."""

    number: int
    is_do_order: bool
    told: Told = "unknown"
    order_ids: set[str] = field(default_factory=set)
    posts: int = 0

    @property
    def key(self) -> str:
        return f"key-{self.number}"

    @property
    def qty(self) -> int:
        return FIRST_QTY + self.number


class NemesisClient:
    """Posts to one gateway; `intents` is its journal."""

    def __init__(self, gateway: Process, seed: str) -> None:
        self._gateway = gateway
        self._chance = Random(seed)
        self.intents: list[Intent] = []
        self.unexpected: list[str] = []
        """Answers that no client should get, such as two order ids for one key."""

    async def load(self, stop: asyncio.Event, posters: int) -> None:
        """Post new orders until told to stop; some of them twice at once, and unknown ones again."""

        async def poster() -> None:
            while not stop.is_set():
                await self._post_something(session)
                await asyncio.sleep(PACE_SECONDS)

        async with _session() as session:
            await asyncio.gather(*(poster() for _ in range(posters)))

    async def insist(self, intents: Iterable[Intent]) -> None:
        """Repeat each of these until the answer is known.

        `/do/order` answers an order in doubt with an error while the doubt lasts: it is asked a few times only.
        """
        async with _session() as session:
            waiting = list(intents)
            for attempt in range(INSIST_MAX):
                await asyncio.gather(*(self._post(session, intent) for intent in waiting))
                is_patient = attempt >= DO_ORDER_INSIST_MAX
                waiting = [one for one in waiting if one.told == "unknown" and not (one.is_do_order and is_patient)]
                if not waiting:
                    return
                await asyncio.sleep(0.5)

    def forget(self, intents: Iterable[Intent]) -> None:
        """An older database was restored: what was told about these does not hold any more."""
        for intent in intents:
            intent.told = "unknown"
            intent.order_ids.clear()

    async def _post_something(self, session: aiohttp.ClientSession) -> None:
        unknown = [intent for intent in self.intents[-50:] if intent.told == "unknown" and intent.posts]
        if unknown and self._chance.random() < 0.5:
            await self._post(session, self._chance.choice(unknown))
            return
        intent = Intent(len(self.intents), self._chance.random() < DO_ORDER_SHARE)
        self.intents.append(intent)
        repeats = self._chance.choice((2, 3)) if self._chance.random() < REPEAT_SHARE else 1
        await asyncio.gather(*(self._post(session, intent) for _ in range(repeats)))

    async def _post(self, session: aiohttp.ClientSession, intent: Intent) -> None:
        intent.posts += 1
        path, body = ("/do/order", _do_order(intent)) if intent.is_do_order else ("/orders", _order(intent))
        headers = self._gateway.headers(key=intent.key)
        try:
            async with session.post(self._gateway.url + path, json=body, headers=headers) as response:
                answer = json.loads(await response.read())
                status = response.status
        except (aiohttp.ClientError, ConnectionError, TimeoutError, ValueError):
            return  # still unknown
        if 200 <= status < 300:
            self._acknowledged(intent, answer)
        elif 400 <= status < 500 and status != 429:
            # A final answer, such as the venue's rejection; an earlier 2xx about the same key still holds.
            intent.told = "fail" if intent.told == "unknown" else intent.told

    def _acknowledged(self, intent: Intent, answer: dict[str, Any]) -> None:
        intent.told = "ok"
        if intent.is_do_order:
            return
        intent.order_ids.add(answer["orderId"])
        if len(intent.order_ids) > 1:
            self.unexpected.append(f"{intent.key} stands for the orders {sorted(intent.order_ids)}")


def _order(intent: Intent) -> dict[str, Any]:
    kind = {"type": "LIMIT", "price": 1000, "timeInForce": "GTC"} if intent.number % 2 else {"type": "MARKET"}
    return {"symbol": "USDJPY", "side": "BUY", "qty": intent.qty, "clientOrderId": intent.key, **kind}


def _do_order(intent: Intent) -> dict[str, Any]:
    body = {
        "order_id": intent.key,
        "idempotency_key": intent.key,
        "instrument": "USDJPY",
        "side": "BUY",
        "qty": intent.qty / 100_000,  # in lots
    }
    return {**body, "price": 1000, "time_in_force": "GTC"} if intent.number % 2 else body


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS))
