"""Ports that forward every call to the real one: tests override single methods to stop a process or plant a defect."""

import sys
from collections.abc import Callable
from typing import Any, cast

from switchyard.bootstrap import Database, PortWrappers, Role
from switchyard.entrypoints.cli.failures import exiting_by_code
from switchyard.entrypoints.cli.processes import run_process
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Venue


class Forwarding:
    """Has the attributes of the port behind it, except those that a subclass defines."""

    def __init__(self, port: Any) -> None:
        self.port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)


Wrapper = Callable[[Any], Forwarding]


class Wrapped(PortWrappers):
    """Wraps the ports that are named and leaves the others as they are."""

    def __init__(
        self,
        *,
        journal: Wrapper | None = None,
        liveness: Wrapper | None = None,
        queries: Wrapper | None = None,
        venue: Wrapper | None = None,
        clock: Wrapper | None = None,
        time: Wrapper | None = None,
    ) -> None:
        self._in_database = {"journal": journal, "liveness": liveness, "queries": queries, "time": time}
        self._venue = venue
        self._clock = clock

    def add(self, *, clock: Wrapper, time: Wrapper) -> None:
        """Wrap the machine's clock and the database's too."""
        self._clock = clock
        self._in_database["time"] = time

    def database(self, database: Database) -> Database:
        wrapped = Forwarding(database)
        for name, wrapper in self._in_database.items():
            if wrapper is not None:
                setattr(wrapped, name, wrapper(getattr(database, name)))
        return cast(Database, wrapped)

    def venue(self, venue: Venue) -> Venue:
        return venue if self._venue is None else cast(Venue, self._venue(venue))

    def clock(self, clock: Clock) -> Clock:
        return clock if self._clock is None else cast(Clock, self._clock(clock))


def command(module: str, *arguments: str) -> list[str]:
    """The command to run in place of `switchyard`; the module takes these arguments and the role."""
    return [sys.executable, "-m", f"tests.support.{module}", *arguments]


def run_wrapped(role: str, wrapped: Wrapped) -> None:
    """Run `switchyard up`, `gateway` or `worker` with these ports."""
    with exiting_by_code():
        run_process(cast(Role, role), {}, wrapped)
