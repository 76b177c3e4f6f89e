"""The embedded runner: the PDCA store is its queue, so a stored request is already submitted."""

from switchyard.domain.strategies.requests import RecheckRequest, RequestState, RunnerName
from switchyard.flow.wake import Wake
from switchyard.ports.strategies import RecheckRequests, Run, RunState

_STATES: dict[RequestState, RunState] = {
    "queued": "queued",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "partial": "failed",
}


class EmbeddedRunner:
    """ports.runner.Runner over the workers of the processes that keep the books."""

    name: RunnerName = "embedded"

    def __init__(self, requests: RecheckRequests, wake: Wake) -> None:
        self._requests = requests
        self._wake = wake

    async def submit(self, request: RecheckRequest) -> Run:
        """Wake the workers of this process; those of others poll."""
        self._wake.notify()
        return await self.run(request.request_id)

    async def run(self, request_id: str) -> Run:
        """How far the request is."""
        stored = await self._requests.request(request_id)
        if stored is None:
            return Run(request_id, "missing", "missing")
        return Run(request_id, _STATES[stored.progress.state], stored.progress.state)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
