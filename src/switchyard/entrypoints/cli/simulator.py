"""`venue-sim`: runs a simulated broker with faults on demand."""

import asyncio
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
import typer

from switchyard.domain.errors import SettingError
from switchyard.domain.risk.claims import TradingDay
from switchyard.ports.venue import AmendMode, Dedupe
from switchyard.settings import parse, risk

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from switchyard.adapters.venues.simulator.log import Faults
    from switchyard.entrypoints.http.transport.server import HttpServer

_Value = TypeVar("_Value")

# The time for requests under way to finish when the listener closes.
GRACE_SECONDS = 1.0

Port = Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free one.")]
Log = Annotated[Path, typer.Option(help="JSON Lines file of all events; a restart continues from it.")]
Host = Annotated[str, typer.Option(help="Address to listen on. There is no authentication: keep it private.")]
DedupeName = Literal["permanent", "forever", "ttl", "while_open", "open_only", "none"]
DedupeOption = Annotated[DedupeName, typer.Option(help="How long a repeated client order id is recognised.")]
Ttl = Annotated[float, typer.Option(min=0, help="Seconds that an id is recognised, with --dedupe ttl.")]
Lookup = Annotated[
    Literal["open", "all"], typer.Option(help="Orders that a lookup by client order id finds: open ones, or all.")
]
AmendOption = Annotated[
    AmendMode, typer.Option(help="How it amends orders: in place, by a new order in place of the old one, or not.")
]
ClockOffset = Annotated[float, typer.Option(help="Seconds by which its clock is ahead of this machine's.")]
Seed = Annotated[int, typer.Option(help="Random seed of the market and the faults.")]
DayZone = Annotated[str, typer.Option(help="Time zone of the trading day, at whose end DAY orders expire.")]
DayRoll = Annotated[str, typer.Option(help="Time at which a trading day begins, in its zone, as HH:MM.")]
FaultOptions = Annotated[
    list[str] | None,
    typer.Option("--fault", help="A fault as name=value; may be repeated. GET /admin/faults lists the names."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("venue-sim")(venue_sim)


def venue_sim(
    port: Port,
    log: Log,
    host: Host = "127.0.0.1",
    dedupe: DedupeOption = "permanent",
    dedupe_ttl: Ttl = 60.0,
    lookup: Lookup = "all",
    amend: AmendOption = "in_place",
    seed: Seed = 0,
    clock_offset: ClockOffset = 0.0,
    day_zone: DayZone = "UTC",
    day_roll: DayRoll = "00:00",
    fault: FaultOptions = None,
) -> None:
    """Run a simulated broker that keeps its own log and produces faults on demand."""
    import uvloop

    from switchyard.telemetry.logs import configure_logs

    faults = _parsed(fault or [])
    session = TradingDay(
        _read(day_zone, risk.zone, "--day-zone"),
        _read(day_roll, risk.roll, "--day-roll"),
    )
    configure_logs("info", "text")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            _serve(
                host, port, log, parse.dedupe(dedupe), dedupe_ttl, lookup, amend, seed, clock_offset, session, faults
            )
        )


async def _serve(
    host: str,
    port: int,
    log: Path,
    dedupe: Dedupe,
    dedupe_ttl: float,
    lookup: Literal["open", "all"],
    amend: AmendMode,
    seed: int,
    clock_offset: float,
    session: TradingDay,
    faults: "Faults",
) -> None:
    from switchyard.adapters.system_clock import SystemClock
    from switchyard.adapters.venues.simulator.app import VenueSimulator
    from switchyard.adapters.venues.simulator.broker import OffsetClock

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listener = _Listener(host, port, stop)
    simulator = VenueSimulator(
        log,
        clock=OffsetClock(SystemClock(), timedelta(seconds=clock_offset)),
        seed=seed,
        dedupe=dedupe,
        dedupe_ttl_seconds=dedupe_ttl,
        lookup=lookup,
        amend=amend,
        hang_up=_hang_up,
        refuse_connections=listener.close_for,
        session=session,
    )
    await simulator.start(stop)
    try:
        await listener.open(simulator.app)
        simulator.app.set_faults(faults)
        typer.echo(f"switchyard venue-sim is listening on http://{host}:{listener.port}", err=True)
        await stop.wait()
    finally:
        await listener.close()
        await simulator.close()


class _Listener:
    """The HTTP server, which a fault can close for a while."""

    def __init__(self, host: str, port: int, stop: asyncio.Event) -> None:
        self._host = host
        self._stop_all = stop
        self._server: HttpServer | None = None
        self._closing: asyncio.Task[None] | None = None
        self.port = port

    async def open(self, app: "ASGIApp") -> None:
        """Start listening."""
        from switchyard.entrypoints.http.transport.server import HttpServer

        self._app = app
        self._server = HttpServer(app, host=self._host, port=self.port, port_setting="--port")
        await self._server.start()
        self.port = self._server.port

    def close_for(self, seconds: float) -> None:
        """Refuse connections for some seconds; ignored while a call before is still in effect."""
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close_and_reopen(seconds))

    async def close(self) -> None:
        """Stop listening."""
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.gather(self._closing, return_exceptions=True)
        await self._stop()

    async def _close_and_reopen(self, seconds: float) -> None:
        await self._stop()
        await asyncio.sleep(seconds)
        try:
            await self.open(self._app)
        except SettingError as error:  # another process took the port
            typer.echo(f"switchyard: {error}", err=True)
            self._stop_all.set()
        else:
            typer.echo("switchyard venue-sim is open again", err=True)

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(GRACE_SECONDS)
            self._server = None


def _hang_up(scope: "Scope") -> None:
    from switchyard.entrypoints.http.transport.protocol import ABORT

    scope["extensions"][ABORT]()


def _read(value: str, parser: Callable[[str], _Value], option: str) -> _Value:
    try:
        return parser(value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _parsed(options: list[str]) -> "Faults":
    from switchyard.adapters.venues.simulator.log import Faults, changed

    values = dict(option.partition("=")[::2] for option in options)
    try:
        return changed(Faults(), values, strict=False)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error), param_hint="--fault") from error
