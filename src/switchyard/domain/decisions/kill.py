"""The kill switch: set and clear a kill, and end or cancel an order that it covers."""

from datetime import datetime

import msgspec

from switchyard.domain.changes import Change
from switchyard.domain.decisions.attempts import end_unsent
from switchyard.domain.decisions.cancel import request_cancel
from switchyard.domain.errors import KillCleared
from switchyard.domain.events import SYSTEM_ACCOUNT, event
from switchyard.domain.facts import KillClearedFact, KillFact
from switchyard.domain.kills import Kill, was_tried
from switchyard.domain.lifecycle import is_final
from switchyard.domain.outbox import MayBeLost, OrderState, never_lost


def set_kill(kill: Kill) -> Change:
    """Set a kill: from this commit on no covered order is accepted, and no attempt to send one begins."""
    fact = KillFact(
        kill_id=kill.kill_id,
        account_id=kill.account_id,
        strategy=kill.strategy,
        venue=kill.venue,
        symbol=kill.symbol,
        mode=kill.mode,
        by=kill.set_by,
        reason=kill.set_reason,
        set_at=kill.set_at,
    )
    return Change(events=(event("KillSwitchSet", SYSTEM_ACCOUNT, None, fact),), kills=(kill,))


def clear_kill(kill: Kill, by: str, reason: str, now: datetime) -> Change:
    """End a kill; raises KillCleared where it was cleared before."""
    if kill.cleared_by is not None:
        raise KillCleared(kill.kill_id, kill.cleared_by)
    cleared = msgspec.structs.replace(
        kill, cleared_by=by, cleared_reason=reason, cleared_at=max(now, kill.set_at), version=kill.version + 1
    )
    assert cleared.cleared_at is not None
    fact = KillClearedFact(kill_id=kill.kill_id, by=by, reason=reason, cleared_at=cleared.cleared_at)
    return Change(events=(event("KillSwitchCleared", SYSTEM_ACCOUNT, None, fact),), kills=(cleared,))


def end_killed(state: OrderState, kill: Kill, now: datetime) -> Change:
    """End an order of which nothing is at the venue, because a kill covers it."""
    return end_unsent(state, "KILL_SWITCH", kill.kill_id, now)


def cancel_killed(state: OrderState, kill: Kill, now: datetime, may_be_lost: MayBeLost = never_lost) -> Change | None:
    """Cancel a covered order: end it, or queue a cancel; none where nothing is to be done.

    A cancel that the venue rejected is not repeated: the answer shows `NOT_CANCELLABLE`, and a person decides.
    """
    if is_final(state.order.status):
        return None
    if state.order.status == "ACCEPTED" and not may_be_lost(state.order, state.row("new", 1)):
        return end_killed(state, kill, now)
    # One that the venue acknowledged and did not carry out is repeated by the sweep of its venue.
    return None if was_tried(state, kill) else request_cancel(state, now, may_be_lost)
