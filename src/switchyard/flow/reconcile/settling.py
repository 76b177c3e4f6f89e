"""Settles the breaks after a pass: reads those that are there, and writes what the pass makes of them."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from switchyard.domain.reconcile.breaks import CURRENT_STATES, Break, Findings, needed_former, settled
from switchyard.ports.books import BREAKS_MAX, BreakFilter, BreakStore

log = structlog.get_logger()


async def current_breaks(breaks: BreakStore) -> dict[str, Break]:
    """All breaks that are not closed."""
    found: dict[str, Break] = {}
    after = ""
    while page := await breaks.page(BreakFilter(states=CURRENT_STATES, after=after)):
        found |= {one.break_id: one for one in page}
        after = page[-1].break_id
    return found


async def settle(
    breaks: BreakStore, known: Mapping[str, Break], findings: Findings, now: datetime, confirm_after: timedelta
) -> None:
    """Write what becomes of the breaks; `known` are those that are not closed."""
    new = needed_former(known.values(), findings)
    former: dict[str, Break] = {}
    for start in range(0, len(new), BREAKS_MAX):
        former |= await breaks.find(new[start : start + BREAKS_MAX])
    after = settled(list(known.values()), former.values(), findings, now, confirm_after)
    for start in range(0, len(after), BREAKS_MAX):
        await breaks.save(after[start : start + BREAKS_MAX])
    for one in after:
        before = known.get(one.break_id)
        if one.state == "open" and (before is None or before.state != "open"):
            log.error(
                "break_open",
                break_id=one.break_id,
                kind=one.kind,
                break_class=one.class_,
                account_id=one.account_id,
                venue=one.venue,
                amount=str(one.amount),
                unit=one.unit,
            )
