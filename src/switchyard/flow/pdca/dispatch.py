"""Tells the runner of accepted rechecks and follows their runs until all items have ended.

Reads and writes the PDCA store; calls the runner. A runner that is down loses nothing: what it was not told is in the
store, and it is told again. A run that failed fails the items that it left unfinished.
"""

from datetime import datetime, timedelta

import msgspec
import structlog

from switchyard.domain.errors import RunnerDown
from switchyard.domain.strategies.requests import ItemError, RecheckRequest, RunnerInfo
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.strategies import PAGE_MAX, RecheckQueue, RecheckRequests, Run, RunConflict, Runner, StoredRequest
from switchyard.telemetry.pdca_job_metrics import PdcaJobMetrics
from switchyard.telemetry.traces import resumed

log = structlog.get_logger()

POLL_SECONDS = 2.0
# While the runner is down one request is tried at a time; the others follow once it answers.
RETRY_SECONDS = 5.0
# A run may end a moment before its last item is read as ended, never much.
ENDED_GRACE = timedelta(seconds=30)
ERROR_LENGTH_MAX = 300


class Dispatch:
    """The stage for a runner outside the process."""

    def __init__(
        self,
        requests: RecheckRequests,
        queue: RecheckQueue,
        runner: Runner,
        *,
        clock: Clock,
        metrics: PdcaJobMetrics,
        queued_max: timedelta,
    ) -> None:
        self._requests = requests
        self._queue = queue
        self._runner = runner
        self._clock = clock
        self._metrics = metrics
        self._queued_max = queued_max
        self._ended_since: dict[str, datetime] = {}
        """Runs that have ended with items unfinished, since when that is known here."""
        self._stuck: set[str] = set()

    async def submit(self, request: RecheckRequest) -> None:
        """Tell the runner of a request right after it was stored; raises RunnerDown, and `run` tries again."""
        stored = await self._requests.request(request.request_id)
        if stored is not None and stored.run.submitted_at is None and stored.finished_at is None:
            await self._submit(stored)

    async def run(self, wake: Wake) -> None:
        """Submit and follow until cancelled."""
        while True:
            pause = POLL_SECONDS
            try:
                await self.run_once()
            except RunnerDown as error:
                log.warning("runner_down", runner=self._runner.name, error=str(error))
                pause = RETRY_SECONDS
            await wake.wait(pause)

    async def run_once(self) -> int:
        """Submit what is not submitted and look at what runs; return how many requests that were. Raises RunnerDown."""
        waiting = await self._all(submitted=False)
        self._metrics.unsubmitted.set(len(waiting))
        for stored in waiting:
            await self._submit(stored)
            self._metrics.unsubmitted.dec()
        running = await self._all(submitted=True)
        self._stuck &= {stored.request.request_id for stored in running}
        for stored in running:
            await self._follow(stored)
        self._metrics.stuck_runs.set(len(self._stuck))
        return len(waiting) + len(running)

    async def _all(self, *, submitted: bool) -> list[StoredRequest]:
        found: list[StoredRequest] = []
        while True:
            after = found[-1].request.request_id if found else ""
            page = await self._requests.unfinished(self._runner.name, submitted=submitted, after=after)
            found += page
            if len(page) < PAGE_MAX:
                return found

    async def _submit(self, stored: StoredRequest) -> None:
        with resumed(stored.request.traceparent):
            await self._tell(stored)

    async def _tell(self, stored: StoredRequest) -> None:
        request = stored.request
        tries = stored.run.tries + 1
        try:
            run = await self._runner.submit(request)
        except RunnerDown as error:
            await self._requests.note_run(
                request.request_id,
                msgspec.structs.replace(stored.run, tries=tries, error=str(error)[:ERROR_LENGTH_MAX]),
            )
            raise
        except RunConflict as error:
            log.critical("run_conflict", request_id=request.request_id, error=str(error))
            await self._fail(request.request_id, "RUN_CONFLICT", str(error))
            return
        log.info("run_submitted", request_id=request.request_id, runner=self._runner.name, state=run.word)
        await self._requests.note_run(
            request.request_id,
            RunnerInfo(submitted_at=self._clock.now(), run_id=run.run_id, run_state=run.word, tries=tries),
        )

    async def _follow(self, stored: StoredRequest) -> None:
        request_id = stored.request.request_id
        run = await self._runner.run(request_id)
        if run.word != stored.run.run_state or stored.run.error is not None:
            await self._requests.note_run(
                request_id, msgspec.structs.replace(stored.run, run_state=run.word, error=None)
            )
        match run.state:
            case "missing":
                log.warning("run_missing", request_id=request_id, runner=self._runner.name)
                await self._submit(stored)
            case "failed" | "succeeded":
                await self._end(request_id, run)
            case "queued":
                self._watch_queue(stored)
            case "running":
                self._stuck.discard(request_id)
                self._ended_since.pop(request_id, None)

    async def _end(self, request_id: str, run: Run) -> None:
        """Fail what an ended run has left; a person may have marked it, or its worker died for good."""
        self._stuck.discard(request_id)
        now = self._clock.now()
        if now - self._ended_since.setdefault(request_id, now) < ENDED_GRACE and run.state == "succeeded":
            return
        del self._ended_since[request_id]
        await self._fail(request_id, "RUN_FAILED", f"the run ended as {run.word} before this strategy was rechecked")

    async def _fail(self, request_id: str, code: str, message: str) -> None:
        error = ItemError(code=code, message=message[:ERROR_LENGTH_MAX])
        count = await self._queue.fail_items(request_id, error, self._clock.now())
        log.error("recheck_items_failed", request_id=request_id, code=code, items=count)

    def _watch_queue(self, stored: StoredRequest) -> None:
        """Alarm once for a run that does not leave the runner's queue."""
        request_id, since = stored.request.request_id, stored.run.submitted_at
        if since is None or self._clock.now() - since < self._queued_max or request_id in self._stuck:
            return
        self._stuck.add(request_id)
        log.critical(
            "run_queued_too_long",
            request_id=request_id,
            runner=self._runner.name,
            seconds=(self._clock.now() - since).total_seconds(),
        )
