"""Assembles the venue simulator from its log, market, faults and HTTP interface."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from switchyard.adapters.venues.simulator.app import SimulatorApp
from switchyard.adapters.venues.simulator.broker import Broker
from switchyard.adapters.venues.simulator.faults import FaultPlan, Faults
from switchyard.adapters.venues.simulator.log import EventLog, LogBroken
from switchyard.adapters.venues.simulator.reporting import Reporting
from switchyard.adapters.venues.simulator.responses import HangUp
from switchyard.domain.risk.claims import UTC_DAY, TradingDay
from switchyard.ports.clock import Clock
from switchyard.ports.venue import AmendMode, Dedupe, Lookup


class VenueSimulator:
    """A simulated broker; run its `app` in an HTTP server."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        seed: int,
        dedupe: Dedupe,
        dedupe_ttl_seconds: float,
        lookup: Lookup,
        amend: AmendMode = "in_place",
        hang_up: HangUp,
        refuse_connections: Callable[[float], None],
        session: TradingDay = UTC_DAY,
    ) -> None:
        plan = FaultPlan(Faults(), seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._log = EventLog(path)
        reporting = Reporting(self._log, plan, clock)
        self._broker = Broker(
            log=self._log,
            reporting=reporting,
            plan=plan,
            clock=clock,
            seed=seed,
            dedupe=dedupe,
            dedupe_ttl_seconds=dedupe_ttl_seconds,
            amend=amend,
            session=session,
        )
        self.app = SimulatorApp(
            broker=self._broker,
            reporting=reporting,
            log=self._log,
            plan=plan,
            clock=clock,
            lookup=lookup,
            amend=amend,
            hang_up=hang_up,
            refuse_connections=refuse_connections,
        )

    async def start(self, stop: asyncio.Event) -> None:
        """Restore the state from the log and start trading; sets `stop` if the log or the market task ends."""
        self._broker.restore(self._log.read())
        self._tasks = [asyncio.create_task(self._log.run()), asyncio.create_task(self._broker.run())]
        for task in self._tasks:
            task.add_done_callback(lambda _: stop.set())

    async def close(self) -> None:
        """Sync the log and stop; raises the error that ended a task, if any."""
        with contextlib.suppress(LogBroken):
            await self._log.synced()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._log.close()
        for result in results:
            if isinstance(result, Exception):
                raise result
