"""The checks of `/health/ready`, for each role."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from switchyard.bootstrap.caches import Caches
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.pdca import PdcaOffice
from switchyard.bootstrap.venue_states import venue_states
from switchyard.bootstrap.venues import clock_offset_of
from switchyard.domain.market.health import Check
from switchyard.domain.risk.kills import AUTOMATIC_KILLS_MAX
from switchyard.flow.health.readiness import (
    DATABASE,
    ReadinessChecks,
    check_clock,
    check_disks,
    check_journal,
    check_venues,
)


def process_checks(core: Core, *, sends: bool) -> ReadinessChecks:
    """The checks that every role with an engine has."""
    checks = ReadinessChecks(core.clock)
    states = partial(venue_states, core)
    checks.add("process", partial(_check_process, core))
    checks.add("journal", partial(check_journal, core.database.journal, core.sequencer.commit_problem))
    checks.add("worker", partial(_check_worker, core, sends=sends))
    checks.add("venues", partial(check_venues, states))
    checks.add("disk", partial(check_disks, core.disks))
    checks.add("clock", partial(check_clock, core.clock, core.wall_clock, partial(clock_offsets, core)))
    return checks


def clock_offsets(core: Core) -> dict[str, timedelta]:
    """This machine's wall clock minus the database's, and minus that of each venue whose answers show it."""
    ahead = core.wall_clock.now() - core.clock.now()
    venues = {name: clock_offset_of(venue) for name, venue in core.venues.items()}
    offsets: dict[str, timedelta] = {name: ahead - offset for name, offset in venues.items() if offset is not None}
    return {DATABASE: core.clock.database_offset, **offsets}


def add_cache_check(checks: ReadinessChecks, core: Core, caches: Caches) -> None:
    """Whether Redis is used, where one is configured."""
    checks.add("cache", partial(_check_cache, core, caches))


def add_pdca_check(checks: ReadinessChecks, office: PdcaOffice) -> None:
    """Whether strategies and rechecks can be read; orders do not need them."""

    async def check() -> Check:
        tally = await office.store.tally()  # raises Unavailable
        return Check("pdca", "ok", f"its store answers: {tally.succeeded + tally.failed} rechecks have ended")

    checks.add("pdca", check, worst="degraded")


def add_bus_check(checks: ReadinessChecks, problem: Callable[[], str | None]) -> None:
    """Whether the journal reaches the message broker; orders do not wait for it."""

    async def check() -> Check:
        found = problem()
        return Check("bus", "ok", "events are published") if found is None else Check("bus", "degraded", found)

    checks.add("bus", check)


async def _check_process(core: Core) -> Check:
    if core.supervisor.stop.is_set():
        return Check("process", "failed", "it is stopping")
    if core.lease is not None and core.lease.lost_to is not None:
        return Check("process", "degraded", f"a copy of this database is running: {core.lease.lost_to}")
    if core.kills.automatic_count >= AUTOMATIC_KILLS_MAX:
        detail = (
            f"programs have set {AUTOMATIC_KILLS_MAX} kills, the maximum, and can stop no further strategy: clear some"
        )
        return Check("process", "degraded", detail)
    return Check("process", "ok", "it accepts requests")


async def _check_worker(core: Core, *, sends: bool) -> Check:
    if sends:
        lanes = 0 if core.lanes is None else len(core.lanes.usable())
        if not lanes:
            return Check("worker", "degraded", "it owns no lane: other workers have them, or the database is away")
        return Check("worker", "ok", f"it sends on {lanes} lanes")
    if core.settings.database_url is None:
        return Check("worker", "degraded", "nothing is sent: SWITCHYARD_WORKER is false")
    if all(core.health.record(venue) is None for venue in core.settings.venue_names):
        return Check("worker", "degraded", "no worker has reported for 20 s: accepted orders wait")
    return Check("worker", "ok", "a worker reports on the venues")


async def _check_cache(core: Core, caches: Caches) -> Check:
    if caches.cache is None:
        return Check("cache", "ok", "none is configured")
    if core.settings.idempotency.cache.redis_url is None:
        return Check("cache", "ok", "in memory")
    if not (await caches.cache.stats()).is_reachable:
        return Check("cache", "degraded", "Redis does not answer: the database answers instead")
    return Check("cache", "ok", "Redis answers")
