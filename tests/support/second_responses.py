"""A broker over its own sockets that answers some requests twice, and counts how often it executed each order."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.support.scripted_server import reply
from tests.support.serving import serving

# What follows the answer to an order unasked, and when: in the same write, a moment later, as the first thing that the
# broker writes after it has read the next request of the connection, or before the answer, as if it had crossed the
# request.
SECONDS = (
    reply(429, {"error": "RATE_LIMITED"}, Retry_After="0"),
    reply(403, {"error": "FORBIDDEN"}),
    reply(200, {"broker_order_id": "brk-0", "accepted_at": "2026-01-01T00:00:00Z", "status": "accepted",
                "idempotency_key": "another"}),
    reply(404, {"error": "UNKNOWN_ORDER"}),
)  # fmt: skip
SECOND_NAMES = ("429", "403", "200 of another order", "404")
CROSSING = "crossing the request"
MOMENTS = ("at once", "later", "with the next request", CROSSING)
NOTHING_KNOWN = reply(404, {"error": "UNKNOWN_ORDER"})
# Later than any wrong conclusion from an answer.
REPORT_SECONDS = 3.0


class Broker:
    """Fills every order that arrives, whatever its id, and recognises none again."""

    def __init__(self, moments: Sequence[str], seconds: Sequence[bytes], lost_every: int) -> None:
        self.executions: Counter[str] = Counter()
        self.unasked = 0
        self.port = 0
        self._orders: dict[str, dict[str, Any]] = {}
        self._reports: list[dict[str, Any]] = []
        self._has_report = asyncio.Event()
        self._plan = itertools.cycle(itertools.product(moments, seconds))
        self._lost_every = lost_every

    def settings(self, dedupe: str, **changes: str) -> dict[str, str]:
        return {
            "VENUE_URL_SIM": f"http://127.0.0.1:{self.port}",
            "VENUE_DEDUPE_SIM": dedupe,
            "VENUE_LOOKUP_SIM": "none" if dedupe == "none" else "all",
            "VENUE_WINDOW_SEC_SIM": "0.5",
            "VENUE_QUOTES_SIM": "none",
            # An answer that is not one must not stop the sending of the others.
            "VENUE_BREAKER_FAULTS_SIM": "0",
            "VENUE_SWEEP_SEC_SIM": "0.5",
            "SWITCHYARD_LOG_LEVEL": "warning",
            **changes,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        owed = b""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [
                    line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length")
                ]
                body = await reader.readexactly(int(lengths[0]) if lengths else 0)
                method, path, _ = head.split(" ", 2)
                self.unasked += bool(owed)
                writer.write(owed)
                owed = b""
                answer = await self._answer(method, path, body)
                if answer is None:
                    return
                moment, second = next(self._plan) if method == "POST" else ("with the next request", NOTHING_KNOWN)
                is_last = "connection: close" in head.lower()
                match moment:
                    case "at once":
                        writer.write(answer + second)
                        self.unasked += 1
                    case "later":
                        writer.write(answer)
                        await self._write_later(writer, second)
                    case "with the next request":
                        writer.write(answer)
                        owed = second
                    case _:
                        self.unasked += 1
                        writer.write(second)
                        await asyncio.sleep(0.002)
                        writer.write(answer)
                await writer.drain()
                if is_last:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    async def _write_later(self, writer: asyncio.StreamWriter, second: bytes) -> None:
        await asyncio.sleep(0.002)
        if not writer.is_closing():
            writer.write(second)
            self.unasked += 1

    async def _answer(self, method: str, path: str, body: bytes) -> bytes | None:
        if method == "POST" and path == "/orders":
            return self._execute(msgspec.json.decode(body))
        if path.startswith("/reports"):
            after = int(path.partition("after=")[2].partition("&")[0])
            if len(self._reports) <= after:
                self._has_report.clear()
                await asyncio.wait([asyncio.ensure_future(self._has_report.wait())], timeout=0.2)
            page = self._reports[after : after + 50]
            return reply(200, {"reports": page, "last_number": after + len(page)})
        if path.startswith("/orders?open=true"):
            return reply(200, {"orders": []})
        found = self._orders.get(path.removeprefix("/orders/"))
        return NOTHING_KNOWN if found is None else reply(200, found)

    def _execute(self, order: dict[str, Any]) -> bytes | None:
        client_id = order["client_order_id"]
        self.executions[client_id] += 1
        number = self.executions.total()
        fill = {"exec_id": f"e-{number}", "qty": order["qty"], "price": 150, "at": "2026-01-01T00:00:00Z"}
        shown = {
            "broker_order_id": f"brk-{number}",
            "accepted_at": "2026-01-01T00:00:00Z",
            "idempotency_key": client_id,
            "client_order_id": client_id,
            "symbol": order["symbol"],
            "intent": order["intent"],
            "qty": order["qty"],
        }
        self._orders[client_id] = {**shown, "status": "filled", "filled_qty": order["qty"], "fills": [fill]}
        report = {**fill, "client_order_id": client_id, "broker_order_id": f"brk-{number}", "status": "filled"}
        report |= {"last_qty": report.pop("qty"), "last_price": report.pop("price"), "filled_qty": order["qty"]}
        asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report, report)
        return (
            None if self._lost_every and number % self._lost_every == 0 else reply(200, {**shown, "status": "accepted"})
        )

    def _report(self, report: dict[str, Any]) -> None:
        self._reports.append(report)
        self._has_report.set()


@asynccontextmanager
async def a_broker(
    moments: Sequence[str] = MOMENTS, seconds: Sequence[bytes] = SECONDS, lost_every: int = 0
) -> AsyncIterator[Broker]:
    """The broker on loopback; with `lost_every`, it loses the answer to every so many orders, so that it is asked."""
    broker = Broker(moments, seconds, lost_every)
    async with serving(broker.serve) as broker.port:
        yield broker
