"""Runs the venue simulator in its own process, and the worker settings that point to it."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.process import Process


class Simulator(Process):
    """`switchyard venue-sim` with its log in `venue.log`."""

    def __init__(self, folder: Path, dedupe: str, faults: Mapping[str, float] | None = None) -> None:
        super().__init__(folder, "venue-sim")
        self.book = folder / "venue.log"
        options = [word for name, value in (faults or {}).items() for word in ("--fault", f"{name}={value}")]
        self.arguments = ["--port", str(self.port), "--log", str(self.book), "--dedupe", dedupe, *options]

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The complete log lines of one event."""
        text = self.book.read_text("utf-8")
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if line["event"] == event]

    def executions(self) -> Counter[str]:
        """How often the venue accepted each order, by order id."""
        return Counter(line["trace_id"] for line in self.lines("order"))

    def orders(self) -> Counter[str]:
        """How often the venue accepted each order, by client order id."""
        return Counter(line["client_order_id"] for line in self.lines("order"))

    def check_nothing_twice(self) -> Counter[str]:
        """Assert that no order and no client order id was accepted twice; returns the counts by order id."""
        lines = self.lines("order")  # read once: the venue keeps writing
        by_client_id = Counter(line["client_order_id"] for line in lines)
        assert set(by_client_id.values()) <= {1}, "the venue took a client order id twice"
        executions = Counter[str](line["trace_id"] for line in lines)
        assert set(executions.values()) <= {1}, "the venue took an order twice"
        return executions

    async def set_faults(self, session: aiohttp.ClientSession, faults: Mapping[str, float]) -> None:
        """Set these faults, in addition to those already set."""
        async with session.post(f"{self.url}/admin/faults", json=dict(faults)) as response:
            assert response.status == 200, await response.text()


def venue_settings(dedupe: str, simulator: Simulator) -> dict[str, str]:
    return {
        "VENUE_URL_SIM": simulator.url,
        "VENUE_DEDUPE_SIM": dedupe,
        # With `none` the venue is one that cannot be asked either: only a report or a person ends a doubt.
        "VENUE_LOOKUP_SIM": "none" if dedupe == "none" else "all",
        "VENUE_WINDOW_SEC_SIM": "2",
        "SWITCHYARD_LOG_LEVEL": "warning",
    }
