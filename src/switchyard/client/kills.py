"""The requests of the kill switch; they need a token with the scope `admin:kill`. Performs no I/O."""

from urllib.parse import quote

import msgspec

from switchyard.client.calls import Call
from switchyard.client.wire import read
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.risk.kills import ClearRequest, KillMode, KillState, KillView, ScopeRequest


class _KillPage(msgspec.Struct, frozen=True, rename="camel"):
    kills: list[KillView]


def kill(
    *,
    reason: str,
    everything: bool = False,
    account: str | None = None,
    strategy: str | None = None,
    venue: str | None = None,
    symbol: str | None = None,
    mode: KillMode = "block",
    wait_seconds: int = 2,
) -> Call[KillState]:
    """Stop new orders and cancel open ones: everything, or what agrees with all of the named values.

    `position` of the result is the journal number after which no covered attempt begins. The gateway answers when no
    order is pending any more, or after `wait_seconds`; read `kill_state` until it is `drained`. A repeat of the same
    request while the kill is active returns the same kill.
    """
    request = ScopeRequest(
        reason=reason,
        everything=everything,
        account=None if account is None else AccountId(account),
        strategy=strategy,
        venue=None if venue is None else VenueName(venue),
        symbol=symbol,
        mode=mode,
    )
    return Call(
        method="POST",
        path=f"/admin/kill?wait={wait_seconds}",
        read=lambda response: read(response.body, KillState),
        body=encode(request),
        timeout_seconds_min=wait_seconds + 5.0,  # the gateway itself waits
    )


def kill_state(kill_id: str) -> Call[KillState]:
    """Return a kill and what became of the orders that were open when it was set."""
    return Call(method="GET", path=_path(kill_id), read=lambda response: read(response.body, KillState))


def kills(limit: int = 100) -> Call[list[KillView]]:
    """Return the newest kills, active and cleared."""
    return Call(
        method="GET",
        path=f"/admin/kills?limit={limit}",
        read=lambda response: read(response.body, _KillPage).kills,
    )


def clear_kill(kill_id: str, *, reason: str) -> Call[KillState]:
    """Clear a kill; one that was cleared before raises ApiError `KILL_CLEARED`."""
    return Call(
        method="POST",
        path=f"{_path(kill_id)}/clear",
        read=lambda response: read(response.body, KillState),
        body=encode(ClearRequest(reason=reason)),
    )


def _path(kill_id: str) -> str:
    return f"/admin/kill/{quote(kill_id, safe='')}"
