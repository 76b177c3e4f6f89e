"""Acorn's fake as the world of the contract suite."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from switchyard.testing.venues import Instrument, Received
from switchyard.venue import TimeInForce

BROKER: Final = Path(__file__).with_name("acorn_broker.py")
TIMES_IN_FORCE: Final[Mapping[str, TimeInForce]] = {"gtc": "GTC", "ioc": "IOC", "till": "GTD"}
ANSWER_SECONDS_MAX: Final = 20.0


class AcornWorld:
    """`acorn_broker.py` as a process of its own, whose log outlives it."""

    options: Mapping[str, str] = {"desk": "suite"}
    secrets: Mapping[str, str] = {"key": "key", "secret": "secret"}
    instruments = (
        Instrument(symbol="USD/JPY", qty=Decimal(1000), resting=Decimal(100), marketable=Decimal(200)),
        Instrument(symbol="EUR/USD", qty=Decimal(2000), resting=Decimal("0.5"), marketable=Decimal(2)),
    )
    open_page = 5

    def __init__(self, folder: Path, *flags: str, port: int | None = None) -> None:
        self.log = folder / "acorn.jsonl"
        self.port = port or _free_port()
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The broker's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running broker."""
        assert self._process is not None, "the broker was not started"
        return self._process

    async def start(self) -> None:
        """Start the broker and wait until it listens."""
        line = await asyncio.to_thread(self._spawn)
        assert line.startswith(b"Acorn listens"), "the broker did not start"

    def _spawn(self) -> bytes:
        """Start the broker; returns its first line."""
        words = [sys.executable, str(BROKER), "--port", str(self.port), "--log", str(self.log), *self._flags]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    async def stop(self) -> None:
        """Kill the broker."""
        self.close()

    def close(self) -> None:
        """Kill the broker, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    async def executed(self, client_order_id: str) -> Decimal:
        """By the broker's own log."""
        return Decimal((await self._control(f"/control/{client_order_id}"))["executed"])

    async def requests(self, client_order_id: str) -> int:
        """By the broker's own count."""
        return int((await self._control(f"/control/{client_order_id}"))["requests"])

    async def all_requests(self) -> int:
        """How many requests to place an order have arrived, taken or not."""
        return int((await self._control("/control/all"))["all"])

    async def received(self, client_order_id: str) -> Received:
        """By the broker's own log."""
        order = (await self._control(f"/control/{client_order_id}"))["order"]
        till = order["till"]
        limit = order["limit"]
        return Received(
            symbol=order["pair"],
            side="BUY" if order["dir"] == "B" else "SELL",
            time_in_force=TIMES_IN_FORCE[order["tif"]],
            qty=Decimal(order["amount"]),
            price=None if limit is None else Decimal(limit),
            post_only=order["maker"],
            good_till=None if till is None else datetime.fromtimestamp(till / 1000, UTC),
        )

    async def fill(self, client_order_id: str, qty: Decimal | None = None) -> None:
        """Execute the open orders with this id."""
        part = {} if qty is None else {"amount": str(qty)}
        await self._control("/control", {"fill": client_order_id, **part})

    async def fault(self, name: str, value: Any = True) -> None:
        """Set a fault for the next order."""
        await self._control("/control", {"faults": {name: value}})

    async def change_keys(self, key: str, secret: str) -> None:
        """Take this key from now on, and no other."""
        await self._control("/control", {"keys": [key, secret]})

    async def let_trade(self, may_trade: bool) -> None:
        """Whether the key may do more than ask."""
        await self._control("/control", {"may_trade": may_trade})

    async def lose_request(self) -> None:
        """The next order."""
        await self.fault("lose_request")

    async def lose_answer(self) -> None:
        """The next order."""
        await self.fault("lose_answer")

    async def delay(self, by: timedelta) -> None:
        """The next order."""
        await self.fault("delay", by.total_seconds())

    async def duplicate(self) -> None:
        """The next order."""
        await self.fault("duplicate")

    async def deny_first(self) -> None:
        """The next order."""
        await self.fault("deny_first")

    async def second_response(self) -> None:
        """The next order."""
        await self.fault("second_response")

    async def fail(self, is_carried_out: bool) -> None:
        """The next order."""
        await self.fault(*(("fail_after", 503) if is_carried_out else ("answer", "503")))

    async def throttle(self) -> None:
        """The next order."""
        await self.fault("answer", "429")

    async def answer(self, code: str) -> None:
        """The next order."""
        await self.fault("answer", code)

    async def answer_question(self, status: int, body: bytes) -> None:
        """The next request that is signed and no message."""
        await self.fault("question", [status, body.decode()])

    async def sessions(self) -> list[str]:
        """The sessions that requests named, one after the other."""
        found: list[str] = (await self._control("/control", {}))["sessions"]
        return found

    async def age(self, by: timedelta) -> None:
        """All orders, for the lookups of this process."""
        await self._control("/control", {"age_ms": by / timedelta(milliseconds=1)})

    async def damage_report(self) -> None:
        """The next execution."""
        await self.fault("damage")

    async def _control(self, path: str, wanted: Mapping[str, Any] | None = None) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            body = None if wanted is None else json.dumps(wanted).encode()
            with urlopen(Request(self.url + path, data=body), timeout=ANSWER_SECONDS_MAX) as response:
                answer: dict[str, Any] = json.load(response)
            return answer

        return await asyncio.to_thread(ask)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
