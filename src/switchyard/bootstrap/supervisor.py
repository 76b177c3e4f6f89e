"""Runs the stages of a process as tasks, restarts a stage that failed, and stops the process on a fatal error."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import structlog

from switchyard.domain.errors import CannotStart, JournalBroken, OutcomeUnknown, Unavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# The pause before a failed stage starts again; its work waits in rows, so nothing is lost meanwhile.
RESTART_SECONDS = 1.0


class Supervisor:
    """Starts stages; `stop` is set when the process is to end, and `failure` says why if it was an error."""

    def __init__(self, metrics: Metrics) -> None:
        self.stop = asyncio.Event()
        self.failure: BaseException | None = None
        self._metrics = metrics

    def start(self, stack: AsyncExitStack, stage: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run the stage in a task that is cancelled and awaited when the stack unwinds."""
        self._metrics.stage_failures.labels(stage)  # an alert needs to see the first increase from 0
        task = asyncio.create_task(self._supervise(stage, run), name=stage)
        stack.push_async_callback(_cancel, task)

    def report_broken_journal(self, error: str) -> None:
        """Stop the process: after a failed commit on the disk, nothing that it writes can be trusted."""
        log.critical("journal_broken", error=error)
        self._fail(CannotStart(f"the journal is broken: {error}"))

    async def _supervise(self, stage: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
                return
            except CannotStart as error:
                self._fail(error)
                return
            except JournalBroken as error:
                self.report_broken_journal(str(error))
                return
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("stage_waits_for_journal", stage=stage, error=str(error), retry_seconds=RESTART_SECONDS)
            except Exception:
                self._metrics.stage_failures.labels(stage).inc()
                log.exception("stage_failed", stage=stage, retry_seconds=RESTART_SECONDS)
            await asyncio.sleep(RESTART_SECONDS)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.stop.set()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
