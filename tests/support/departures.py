"""In which sequence orders were accepted and sent, out of the journal."""

import json
from typing import Any

import asyncpg


class Departures:
    """The orders of each symbol by the sequence of their acceptance and of their first attempts."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines = lines
        self._symbols = {
            line["orderId"]: line["data"]["order"]["symbol"] for line in lines if line["type"] == "OrderAccepted"
        }

    @classmethod
    async def read(cls, observer: "asyncpg.Connection[asyncpg.Record]") -> "Departures":
        """Of everything in the journal."""
        rows = await observer.fetch("SELECT text FROM journal ORDER BY seq")
        return cls([json.loads(row["text"] + "}") for row in rows])

    def check(self) -> None:
        """Fail where an order was sent before an earlier one of its symbol."""
        first = [line for line in self.lines if line["data"].get("outbox", [{}])[0].get("attempt", 0) <= 1]
        accepted, sending = (self._by_symbol(first, kind) for kind in ("OrderAccepted", "OrderSending"))
        for symbol in sorted(set(self._symbols.values())):
            assert sending[symbol] == accepted[symbol], f"an order in {symbol} was sent before an earlier one"

    def senders(self) -> set[str]:
        """The workers that began an attempt."""
        return {line["data"]["outbox"][0]["worker"] for line in self.lines if line["type"] == "OrderSending"}

    def _by_symbol(self, lines: list[dict[str, Any]], kind: str) -> dict[str, list[str]]:
        orders: dict[str, list[str]] = {symbol: [] for symbol in self._symbols.values()}
        for line in lines:
            if line["type"] == kind:
                orders[self._symbols[line["orderId"]]].append(line["orderId"])
        return orders
