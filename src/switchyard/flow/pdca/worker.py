"""Carries out the items of rechecks: claims one, rechecks its strategy, stores the result; follows an external runner.

Reads and writes the PDCA store; a claim has a lease that is renewed while the item is worked on, and a fence that a
later claim takes away. An unhealthy strategy is killed if `PDCA_ENFORCE` asks for it.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec
import structlog

from switchyard.domain.errors import OutcomeUnknown, RunnerDown, SwitchyardError, TooManyKills, Unavailable
from switchyard.domain.ids import ULID_RANDOM_BITS, AccountId, KillId, kill_id, ulid
from switchyard.domain.risk.kills import PDCA, Kill
from switchyard.domain.strategies.registry import Strategy, StrategyKey
from switchyard.domain.strategies.requests import Fence, ItemError, RecheckRequest, RequestState, RunnerInfo, RunnerName
from switchyard.flow.clock import Wake
from switchyard.flow.pdca.recheck import CannotRecheck, Recheck, Rechecked
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Kills
from switchyard.ports.strategies import (
    PAGE_MAX,
    Claimed,
    LostFence,
    RecheckQueue,
    RecheckRequests,
    Run,
    RunConflict,
    Runner,
    RunState,
    StoredRequest,
    StrategyRegistry,
)
from switchyard.ports.tracing import Tracer
from switchyard.telemetry.metrics import PdcaJobMetrics
from switchyard.telemetry.traces import annotate, child_span, resumed

log = structlog.get_logger()

# After a kill of the process its items wait this long; a renewal that is late by two turns does not lose a live one.
LEASE = timedelta(seconds=15)
RENEW_SECONDS = 5.0
# A database that is away: how often it is asked, and how long before the item fails. A failover takes minutes.
RETRY_SECONDS = 2.0
OUTAGE_SECONDS_MAX = 900.0
# Another process may have stored a request; and a lease may have ended.
POLL_SECONDS = 1.0


class RecheckWorker:
    """Works on up to `parallel` items at a time."""

    def __init__(
        self,
        queue: RecheckQueue,
        recheck: Recheck,
        *,
        name: str,
        clock: Clock,
        metrics: PdcaJobMetrics,
        parallel: int,
        tracer: Tracer | None = None,
    ) -> None:
        self._queue = queue
        self._recheck = recheck
        self._name = name
        self._clock = clock
        self._metrics = metrics
        self._parallel = parallel
        self._tracer = tracer

    async def run(self, wake: Wake) -> None:
        """Work on the embedded runner's items until cancelled."""
        working: set[asyncio.Task[None]] = set()
        try:
            while True:
                for claimed in await self._claim(self._parallel - len(working)):
                    working.add(asyncio.create_task(self._work(claimed)))
                if not working:
                    await wake.wait(POLL_SECONDS)
                    continue
                # A free place is filled at once, whatever the other items take.
                done, working = await asyncio.wait(working, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def run_once(self, request_id: str | None = None) -> int:
        """Work on one batch of claims, of one request if it is named; return how many items it had."""
        claims = await self._claim(self._parallel, request_id)
        await asyncio.gather(*map(self._work, claims))
        return len(claims)

    async def _claim(self, limit: int, request_id: str | None = None) -> list[Claimed]:
        if limit <= 0:
            return []
        return await self._queue.claim_items(
            self._name, limit, now=self._clock.now(), lease=LEASE, request_id=request_id
        )

    async def _work(self, claimed: Claimed) -> None:
        fence, request = claimed.fence, claimed.request
        with child_span(self._tracer, "pdca.recheck.item", "consumer", parent=request.traceparent):
            annotate(
                request_id=fence.request_id,
                strategy=fence.key.strategy_id,
                attempt=claimed.attempts,
                trace_id=request.trace_id,
            )
            await self._work_on(claimed)

    async def _work_on(self, claimed: Claimed) -> None:
        fence = claimed.fence
        renewing = asyncio.create_task(self._renew(fence))
        try:
            await self._finish(claimed)
        except LostFence:
            self._metrics.interrupted.labels("claimed_by_another").inc()
            log.warning(
                "recheck_lost",
                request_id=fence.request_id,
                account_id=fence.key.account_id,
                strategy=fence.key.strategy_id,
            )
        except (Unavailable, OutcomeUnknown) as error:
            # The store is away: what was found is lost, and the item is claimed again when its lease ends.
            self._note_wait(fence, error)
        except asyncio.CancelledError:
            with contextlib.suppress(LostFence, Unavailable):
                await self._queue.release(fence)
            raise
        finally:
            renewing.cancel()

    async def _finish(self, claimed: Claimed) -> None:
        fence = claimed.fence
        began = self._clock.monotonic()
        try:
            found = await self._checked(claimed)
            await self._queue.finish_item(fence, found.result, self._clock.now(), found.artifacts)
        except CannotRecheck as error:
            await self._fail(fence, ItemError(code=error.code, message=str(error)))
        except (LostFence, Unavailable, OutcomeUnknown):
            raise
        except Exception:
            log.exception(
                "recheck_failed",
                request_id=fence.request_id,
                account_id=fence.key.account_id,
                strategy=fence.key.strategy_id,
            )
            await self._fail(
                fence, ItemError(code="INTERNAL_ERROR", message="the recheck failed: see the server's log")
            )
        else:
            self._metrics.seconds.observe(self._clock.monotonic() - began)
            annotate(health=found.result.health)
            log.info(
                "strategy_rechecked",
                request_id=fence.request_id,
                account_id=fence.key.account_id,
                strategy=fence.key.strategy_id,
                health=found.result.health,
                dry_run=claimed.request.dry_run,
            )

    async def _checked(self, claimed: Claimed) -> Rechecked:
        """Recheck, again and again while a database is away: an outage must not use up the attempts of the item."""
        fence, deadline = claimed.fence, self._clock.monotonic() + OUTAGE_SECONDS_MAX
        while True:
            try:
                return await self._recheck.check(claimed.request, claimed.strategy, lambda: self._extend(fence))
            except (Unavailable, OutcomeUnknown) as error:  # a kill that may be set already is set once, by its id
                self._note_wait(fence, error)
                if self._clock.monotonic() >= deadline:
                    raise CannotRecheck(
                        "DATABASE_AWAY", f"a database did not answer for {OUTAGE_SECONDS_MAX / 60:g} minutes"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS)

    def _note_wait(self, fence: Fence, error: SwitchyardError) -> None:
        self._metrics.interrupted.labels("database_away").inc()
        log.warning(
            "recheck_waits",
            request_id=fence.request_id,
            account_id=fence.key.account_id,
            strategy=fence.key.strategy_id,
            error=str(error),
        )

    async def _fail(self, fence: Fence, error: ItemError) -> None:
        await self._queue.finish_item(fence, error, self._clock.now())
        annotate(error_code=error.code)

    async def _extend(self, fence: Fence) -> None:
        await self._queue.renew(fence, self._clock.now() + LEASE)

    async def _renew(self, fence: Fence) -> None:
        """Extend the lease until cancelled; once it is lost, the end of the item will say so."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._extend(fence)
            except LostFence:
                return
            except Unavailable as error:
                log.warning("recheck_lease_not_renewed", request_id=fence.request_id, error=str(error))


RUNNER_POLL_SECONDS = 2.0
# While the runner is down one request is tried at a time; the others follow once it answers.
RUNNER_RETRY_SECONDS = 5.0
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
            pause = RUNNER_POLL_SECONDS
            try:
                await self.run_once()
            except RunnerDown as error:
                log.warning("runner_down", runner=self._runner.name, error=str(error))
                pause = RUNNER_RETRY_SECONDS
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


_STATES: dict[RequestState, RunState] = {
    "queued": "queued",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "partial": "failed",
}


class EmbeddedRunner:
    """ports.strategies.Runner over the workers of the processes that keep the books."""

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


REASON_LENGTH_MAX = 500

Restrict = Callable[[AccountId, str, str, KillId], Awaitable[Kill]]
"""Set a kill of mode `reduce_only` of a strategy, for this reason, under this id; it may cover the whole account."""


class Enforcement:
    """`PDCA_ENFORCE=reduce_only`."""

    def __init__(self, registry: StrategyRegistry, kills: Kills, restrict: Restrict) -> None:
        self._registry = registry
        self._kills = kills
        self._restrict = restrict

    async def __call__(self, request: RecheckRequest, strategy: Strategy, reasons: tuple[str, ...]) -> str | None:
        """Restrict the strategy; returns what was done.

        None if a later recheck has judged the strategy since, or if it belongs to no account or was deleted, also if
        one of its name was registered since.
        """
        account, name = strategy.account_id, strategy.strategy_id
        known = await self._registry.strategy(strategy.key)
        if account is None or known is None or known.created_at != strategy.created_at:
            return None
        if known.last_requested_at is not None and known.last_requested_at > request.created_at:
            return None
        own = [kill for kill in await self._kills.active() if kill.set_by == PDCA and kill.mode == "reduce_only"]
        for kill in own:
            if kill.covers_scope(account, name, None, None):
                return f"it is reduce-only already, by {kill.kill_id}"
        text = f"recheck {request.request_id}: {'; '.join(reasons)}"
        try:
            kill = await self._restrict(
                account, name, text[:REASON_LENGTH_MAX].rstrip(), restriction_id(request, strategy.key)
            )
        except TooManyKills as error:
            log.critical("strategy_not_restricted", account_id=account, strategy=name, error=str(error))
            return None
        if not kill.is_active:
            return None  # this recheck has set it before, and a person has cleared it
        log.warning("strategy_restricted", account_id=account, strategy=name, kill_id=kill.kill_id, reasons=reasons)
        return f"it was made reduce-only by {kill.kill_id}"


async def enforce_nothing(_request: RecheckRequest, _strategy: Strategy, _reasons: tuple[str, ...]) -> None:
    """`PDCA_ENFORCE=none`."""


def restriction_id(request: RecheckRequest, key: StrategyKey) -> KillId:
    """The id of the kill of this request and strategy: the same at every repeat."""
    digest = hashlib.sha256(f"{request.request_id} {key.tenant} {key.strategy_id}".encode()).digest()
    bits = int.from_bytes(digest) >> (8 * len(digest) - ULID_RANDOM_BITS)
    return kill_id(ulid(int(request.created_at.timestamp() * 1000), bits))
