"""The processes of one test: `switchyard` in any role and the brokers it sends to."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from tests.support.process import Process
from tests.support.venue_process import VenueProcess

AnyProcess = TypeVar("AnyProcess", bound=Process)


class Cluster:
    """Creates processes in folders of one test; `close` kills those that still run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[Process] = []

    def process(self, role: str = "up", name: str = "", **settings: str) -> Process:
        """A Switchyard process with its own folder; not started."""
        return self.add(Process(self.folder / name, role, **settings))

    def broker(
        self,
        *options: str,
        dedupe: str = "forever",
        faults: Mapping[str, float] | None = None,
        name: str = "venue",
    ) -> VenueProcess:
        """A simulated broker with its own folder; not started."""
        return self.add(VenueProcess(self.folder / name, *options, dedupe=dedupe, faults=faults))

    def add(self, process: AnyProcess) -> AnyProcess:
        """Close this process too."""
        self._processes.append(process)
        return process

    def within(self, name: str) -> "Cluster":
        """A cluster in a folder below, closed with this one."""
        inner = Cluster(self.folder / name)
        inner._processes = self._processes
        return inner

    def close(self) -> None:
        """Kill the processes that still run, the newest first."""
        for process in reversed(self._processes):
            process.close()
