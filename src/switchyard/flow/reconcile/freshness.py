"""Whether the books are compared and agree, for the readiness probe. Reads the last pass and the breaks."""

from typing import Final

from switchyard.domain.market.health import Check
from switchyard.flow.reconcile.reconciler import Reconciler

# A pass over large books takes minutes, and one that fails is tried again after the interval. The alert
# ReconcileStale has the same limit.
STALE_INTERVALS: Final = 5
STALE_SECONDS: Final = 600.0


async def check_reconciliation(reconciler: Reconciler) -> Check:
    """Degraded while a break is open, or if no pass has been completed for long."""
    age_seconds = reconciler.age_seconds()
    if age_seconds > STALE_INTERVALS * reconciler.interval_seconds + STALE_SECONDS:
        return Check("reconcile", "degraded", f"no pass was completed for {age_seconds:.0f} s")
    if reconciler.last is None:
        return Check("reconcile", "ok", "the first pass is under way")
    counts = await reconciler.breaks.counts()
    open_breaks = sum(count for (_, state), count in counts.items() if state == "open")
    detail = f"compared {age_seconds:.0f} s ago: {open_breaks} open breaks"
    if reconciler.last.not_compared:
        detail += f", {len(reconciler.last.not_compared)} comparisons could not be made"
    return Check("reconcile", "degraded" if open_breaks else "ok", detail)
