"""The venue simulator as tests run it, and a worker's settings for it."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.process import Process


class Simulator(Process):
    """The venue simulator as a process of its own."""

    def __init__(self, folder: Path, dedupe: str, faults: Mapping[str, float] | None = None) -> None:
        super().__init__(folder, "venue-sim")
        self.book = folder / "venue.log"
        words = [word for name, value in (faults or {}).items() for word in ("--fault", f"{name}={value}")]
        self.arguments = ["--port", str(self.port), "--log", str(self.book), "--dedupe", dedupe, *words]

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The whole lines of its log of one kind."""
        text = self.book.read_text("utf-8")
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in found if line["event"] == event]

    def executions(self) -> Counter[str]:
        """How often the venue took on each of our orders, by order id."""
        return Counter(line["trace_id"] for line in self.lines("order"))

    def orders(self) -> Counter[str]:
        """The same by the client order id that it was given."""
        return Counter(line["client_order_id"] for line in self.lines("order"))

    def check_nothing_twice(self) -> Counter[str]:
        """What it took on, by order id, after looking that no client order id and no order was taken on twice."""
        lines = self.lines("order")  # one look: between two of them the venue goes on
        by_client_id = Counter(line["client_order_id"] for line in lines)
        assert set(by_client_id.values()) <= {1}, "the venue took a client order id twice"
        executions = Counter[str](line["trace_id"] for line in lines)
        assert set(executions.values()) <= {1}, "the venue took an order twice"
        return executions

    async def set_faults(self, session: aiohttp.ClientSession, faults: Mapping[str, float]) -> None:
        """Change how it misbehaves from now on."""
        async with session.post(f"{self.url}/admin/faults", json=dict(faults)) as response:
            assert response.status == 200, await response.text()


def venue_settings(dedupe: str, simulator: Simulator) -> dict[str, str]:
    return {
        "VENUE_URL_SIM": simulator.url,
        "VENUE_DEDUPE_SIM": dedupe,
        "VENUE_WINDOW_SEC_SIM": "2",
        "SWITCHYARD_LOG_LEVEL": "warning",
    }
