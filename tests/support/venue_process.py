"""Runs the venue simulator in its own process and reads its log."""

from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.support.process import Process


class VenueProcess(Process):
    """`switchyard venue-sim` on a free port; `start` returns once it responds."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder, "venue-sim")
        self.events_path = folder / "venue.jsonl"
        self.arguments = ["--port", str(self.port), "--log", str(self.events_path), *options]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The complete lines of its log, all or those of one event."""
        text = self.events_path.read_bytes()
        lines = [msgspec.json.decode(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
        return [line for line in lines if kind is None or line["event"] == kind]

    def orders(self) -> Counter[str]:
        """How often each client order id was accepted."""
        return Counter(line["client_order_id"] for line in self.events("order"))

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
