"""Carries out the items of rechecks: claims one, rechecks its strategy, stores what was found.

Reads and writes the PDCA store; a claim has a lease that is renewed while the item is worked on, and a fence that a
later claim takes away. After a kill of the process its items are claimed again when their leases have ended.
"""

import asyncio
import contextlib
from datetime import timedelta

import structlog

from switchyard.domain.errors import OutcomeUnknown, SwitchyardError, Unavailable
from switchyard.domain.strategies.requests import Fence, ItemError
from switchyard.flow.pdca.recheck import CannotRecheck, Recheck, Rechecked
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.strategies import Claimed, LostFence, RecheckQueue
from switchyard.ports.tracing import Tracer
from switchyard.telemetry.pdca_job_metrics import PdcaJobMetrics
from switchyard.telemetry.traces import annotate, child_span

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
