"""Makes an account's unhealthy strategy reduce-only, by a kill of that mode in the name `pdca`; a person clears it.

Reads the kills; writes through the kill switch, so it is journaled. A recheck that is repeated sets no second kill,
also after the first was cleared.
"""

import hashlib
from collections.abc import Awaitable, Callable

import structlog

from switchyard.domain.errors import TooManyKills
from switchyard.domain.ids import ULID_RANDOM_BITS, AccountId, KillId, kill_id, ulid
from switchyard.domain.risk.kills import PDCA, Kill
from switchyard.domain.strategies.registry import Strategy, StrategyKey
from switchyard.domain.strategies.requests import RecheckRequest
from switchyard.ports.queries import Kills
from switchyard.ports.strategies import StrategyRegistry

log = structlog.get_logger()

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
