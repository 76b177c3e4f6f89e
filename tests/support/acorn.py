"""The example plugin in `examples/venue_plugin`: its fake broker, and processes that use it without an installation."""

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal
from uuid import uuid4

from msgspec.structs import replace

from switchyard.venue import (
    Answer,
    Configuration,
    Found,
    Kind,
    Message,
    NeverReceived,
    NewOrder,
    OrderRef,
    Request,
    Response,
    Wire,
)
from tests.support.ports import free_port
from tests.support.process import ROOT

FOLDER = ROOT / "examples/venue_plugin"
sys.path.insert(0, str(FOLDER))

from acorn_venue import KIND  # noqa: E402
from acorn_venue.adapter import AcornAdapter, _data, _found  # noqa: E402
from acorn_venue.descriptor import WINDOW  # noqa: E402
from acorn_world import AcornWorld  # noqa: E402

__all__ = ["KIND", "WINDOW", "AcornAdapter", "AcornWorld", "_found"]

SYMBOLS = "USDJPY=USD/JPY,EURUSD=EUR/USD"


def acorn_world(folder: Path, *flags: str) -> AcornWorld:
    """The fake broker on a free port; not started."""
    folder.mkdir(parents=True, exist_ok=True)
    return AcornWorld(folder, *flags, port=free_port())


def acorn_settings(url: str, **changes: str) -> dict[str, str]:
    """The settings of a process whose only venue, ACORN, is at this address."""
    return {
        "SOR_VENUES": "acorn",
        "VENUE_URL_ACORN": f"acorn:{url}",
        "VENUE_SECRETS_ACORN": "key=key,secret=secret",
        "VENUE_SYMBOLS_ACORN": SYMBOLS,
        "SWITCHYARD_LOG_LEVEL": "warning",
        **changes,
    }


def plugin_path(folder: Path) -> str:
    """A PYTHONPATH on which the plugin counts as installed: its package, and its entry point as metadata."""
    metadata = folder / "acorn_venue-0.1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acorn-venue\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[switchyard.venues]\nacorn = acorn_venue:KIND\nacorn-session = tests.support.acorn:EXCLUSIVE\n"
    )
    return ":".join(map(str, (ROOT / "src", ROOT, FOLDER, folder)))


class NumberedAcorn(AcornAdapter):
    """Numbers its orders, so that Acorn can prove that one has never arrived."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.numbers: dict[str, list[str]] = {}

    async def send(self, message: Message, wire: Wire) -> Answer:
        if not isinstance(message, NewOrder):
            return await super().send(message, wire)
        number = str(uuid4())
        self.numbers.setdefault(message.client_order_id, []).append(number)
        return await super().send(message, _NumberedWire(wire, number))

    async def find(  # type: ignore[override]
        self, ref: OrderRef, wire: Wire
    ) -> Found | NeverReceived | None:
        found = await super().find(ref, wire)
        numbers = self.numbers.get(ref.client_order_id, [])
        if found is not None or not self.covers(numbers, ref):
            return found
        return await self._ask(wire, _passed, "/v2/numbers/pass", numbers=",".join(numbers))

    def covers(self, numbers: list[str], ref: OrderRef) -> bool:
        """Whether these are the numbers of all copies."""
        return bool(numbers) and len(numbers) == ref.attempts


class _NumberedWire:
    def __init__(self, wire: Wire, number: str) -> None:
        self._wire, self._number = wire, number
        self.time, self.ask = wire.time, wire.ask

    async def send(self, request: Request, read: Callable[[Response], Answer]) -> Answer:
        headers = {**request.headers, "Acorn-Number": self._number}
        return await self._wire.send(replace(request, headers=headers), read)


def _passed(response: Response) -> NeverReceived:
    if not _data(response)["passed"]:
        raise ValueError("a request has arrived since")
    return NeverReceived(evidence="Acorn has passed the numbers of all requests")


def numbered(adapter: type[NumberedAcorn] = NumberedAcorn) -> Kind:
    """The kind with numbered requests."""
    capabilities = replace(KIND.descriptor.capabilities, sequence_proof=True)
    return replace(KIND, descriptor=replace(KIND.descriptor, capabilities=capabilities), build=adapter)


class SessionAcorn(AcornAdapter):
    """Names its session in each request, as a connection does; quotes are read without one."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._session: str | None = None

    async def open(self) -> None:
        self._session = str(uuid4())

    def _signed(self, method: Literal["GET", "POST"], path: str, at: datetime, content: bytes | None = None) -> Request:
        request = super()._signed(method, path, at, content)
        session = {} if self._session is None else {"Acorn-Session": self._session}
        return replace(request, headers={**request.headers, **session})


EXCLUSIVE = Kind(
    descriptor=replace(
        KIND.descriptor,
        kind="acorn-session",
        capabilities=replace(KIND.descriptor.capabilities, sessions="exclusive"),
    ),
    build=SessionAcorn,
)
