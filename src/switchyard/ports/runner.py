"""The runner port: who carries out an accepted recheck. The items themselves are in the PDCA store."""

from typing import Literal, Protocol

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.strategies.requests import RecheckRequest, RunnerName

RunState = Literal[
    "queued",
    "running",
    "succeeded",
    "failed",
    "missing",  # the runner does not have it, or no longer: it is submitted again under the same id
]


class RunConflict(SwitchyardError):
    """The runner has another run under the id of this request; a person has to look at it."""


class Run(msgspec.Struct, frozen=True):
    """A run as the runner sees it."""

    run_id: str
    state: RunState
    word: str
    """The runner's own word for the state."""


class Runner(Protocol):
    """Submitting is idempotent: a request has one run, however often it is submitted."""

    @property
    def name(self) -> RunnerName:
        """Return the name under which requests are stored for it."""
        ...

    async def submit(self, request: RecheckRequest) -> Run:
        """Start the run of a stored request, or find it. Raises RunnerDown, nothing is lost then; and RunConflict."""
        ...

    async def run(self, request_id: str) -> Run:
        """Return the run of a submitted request. Raises RunnerDown."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
