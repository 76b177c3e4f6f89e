"""The stages of order entry: caches, services, the queue forecast and the removal of expired keys."""

from contextlib import AsyncExitStack

from switchyard.bootstrap.caches import Caches, open_caches
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.services import Services
from switchyard.domain.orders.keys import DERIVED_CLOSE, DERIVED_ORDER
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.history.restore import incarnation_of, restored_at
from switchyard.flow.intake.derived import Reaper
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.risk.contents import RepeatedExecutions
from switchyard.flow.traced import TracedCommit


async def start_gateway(core: Core, hub: StreamHub, stack: AsyncExitStack) -> tuple[Services, Caches]:
    """Build the services that accept requests and start the stages that they rely on."""
    incarnation = await incarnation_of(core.database.journal)
    caches = open_caches(core.settings, incarnation, core.clock, core.metrics, stack)
    offer = core.sequencer.offer
    commit: Commit = offer if core.tracer is None else TracedCommit(offer, core.tracer)
    services = Services(
        core.settings,
        core.database,
        caches=caches,
        commit=commit,
        hub=hub,
        catalogue=core.catalogue,
        quotes=core.quotes,
        clock=core.clock,
        randomness=core.randomness,
        tag=core.installation.tag,
        restored_at=await restored_at(core.database.journal),
        metrics=core.metrics,
        window=core.window,
        kills=core.kills,
        choice=core.choice,
    )
    core.supervisor.start(stack, "forecast", core.forecast.run)
    core.supervisor.start(stack, "admission", core.window.run)
    _start_throttle(core, stack)
    reuses = core.settings.idempotency.behavior.allow_retry_after_expiry
    reaper = Reaper(core.database.keys, core.clock, core.metrics, kept=() if reuses else (DERIVED_ORDER, DERIVED_CLOSE))
    core.supervisor.start(stack, "reap", reaper.run)
    if caches.cache is not None:
        core.supervisor.start(stack, "cache", caches.cache.run)
    return services, caches


def _start_throttle(core: Core, stack: AsyncExitStack) -> None:
    """Suspend strategies that are filled too often, where the settings say what is too often."""
    risk = core.settings.risk
    if risk.strategy_fills_max is None:
        return
    repeated = RepeatedExecutions(
        journal=core.database.journal,
        queries=core.database.queries,
        fills_max=risk.strategy_fills_max,
        window=risk.strategy_fills_window,
        suspend=core.suspend_strategy,
    )
    core.supervisor.start(stack, "repeated executions", lambda: repeated.run(core.wakes.fills))
