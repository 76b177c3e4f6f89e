"""Runs the venue simulator in its own process and reads its log."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.support.process import Process


class VenueProcess(Process):
    """`switchyard venue-sim` on a free port; `start` returns once it responds."""

    def __init__(
        self, folder: Path, *options: str, dedupe: str = "forever", faults: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(folder, "venue-sim")
        self.dedupe = dedupe
        self.events_path = folder / "venue.jsonl"
        given = [word for name, value in (faults or {}).items() for word in ("--fault", f"{name}={value}")]
        where = ["--port", str(self.port), "--log", str(self.events_path)]
        self.arguments = [*where, "--dedupe", dedupe, *given, *options]

    def client_settings(self, **changes: str) -> dict[str, str]:
        """The settings of a Switchyard process that uses this broker as its venue SIM."""
        return {
            "VENUE_URL_SIM": self.url,
            "VENUE_DEDUPE_SIM": self.dedupe,
            # Class C: without a lookup, only a report or an operator ends a doubt.
            "VENUE_LOOKUP_SIM": "none" if self.dedupe == "none" else "all",
            "VENUE_WINDOW_SEC_SIM": "2",
            "SWITCHYARD_LOG_LEVEL": "warning",
            **changes,
        }

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The complete lines of its log, all or those of one event."""
        text = self.events_path.read_bytes()
        lines = [msgspec.json.decode(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
        return [line for line in lines if kind is None or line["event"] == kind]

    def orders(self) -> Counter[str]:
        """How often each client order id was accepted."""
        return Counter(line["client_order_id"] for line in self.events("order"))

    def executions(self) -> Counter[str]:
        """How often each order was accepted, by Switchyard's order id."""
        return Counter(line["trace_id"] for line in self.events("order"))

    def check_nothing_twice(self) -> Counter[str]:
        """Assert that no order and no client order id was accepted twice; returns the counts by order id."""
        lines = self.events("order")  # read once, because the venue keeps writing
        by_client_order_id = Counter(line["client_order_id"] for line in lines)
        assert set(by_client_order_id.values()) <= {1}, "the venue accepted a client order id twice"
        executions = Counter[str](line["trace_id"] for line in lines)
        assert set(executions.values()) <= {1}, "the venue accepted an order twice"
        return executions

    async def set_faults(self, **faults: float) -> None:
        """Set these faults, in addition to those already set."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/admin/faults", json=faults) as response,
        ):
            assert response.status == 200, await response.text()

    async def clear_faults(self) -> None:
        """Switch all faults off."""
        async with aiohttp.ClientSession() as session, session.delete(f"{self.url}/admin/faults") as response:
            assert response.status == 200
