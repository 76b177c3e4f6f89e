"""Sets and clears kills, and tells what became of the orders that they cover.

Reads kills and orders; writes through `commit`; sends nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import InvalidField, JournalUnavailable, NotFound, TooManyKills
from switchyard.domain.ids import KillId, OrderId, VenueName, kill_id
from switchyard.domain.journal.changes import Committed
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.kills import (
    ACTIVE_KILLS_MAX,
    AUTOMATIC_ACCOUNT_KILLS_MAX,
    AUTOMATIC_KILLS_MAX,
    AUTOMATIC_STRATEGY_KILLS_MAX,
    PROGRAMS,
    Kill,
    KilledOrder,
    KillState,
    KillView,
    OrderFate,
    ScopeRequest,
    active_twin,
    fate_of,
    is_in_flight,
    view_of,
)
from switchyard.domain.values import SYMBOL, check_label, check_strategy
from switchyard.flow.commit.sequencer import Commit, after_commit
from switchyard.ports.clock import Clock, Randomness, fresh_ulid
from switchyard.ports.journal import PAGE_MAX, Journal
from switchyard.ports.queries import Kills

REASON_LENGTH_MAX = 500
# The orders of one answer; the counts are of all orders.
ORDERS_MAX = 200
IN_FLIGHT_MAX = 1_000
# Beyond the bound of active kills there is room for kills of everything: these must never fail because of the others.
RESERVE = 100
# How often the state is read while a caller waits for its orders to end.
POLL_SECONDS = 0.1
WAIT_SECONDS_MAX = 20.0
# Two people may clear the same kill at once; the second try finds it cleared.
TRIES_MAX = 4


class KillRequest(ScopeRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, with the name of the person who sets it; over HTTP that is the token's subject."""

    by: str

    @classmethod
    def of(cls, scope: ScopeRequest, by: str) -> "KillRequest":
        """The request of a person."""
        return cls(by=by, **msgspec.structs.asdict(scope))


class KillSwitch:
    """The kill switch of this installation."""

    def __init__(
        self,
        *,
        journal: Journal,
        kills: Kills,
        commit: Commit,
        clock: Clock,
        randomness: Randomness,
        venues: Collection[VenueName],
    ) -> None:
        self._journal = journal
        self._kills = kills
        self._commit = commit
        self._clock = clock
        self._randomness = randomness
        self._venues = venues

    async def set(self, request: KillRequest, new_id: KillId | None = None) -> Kill:
        """Set a kill; the same request by the same person, repeated while the kill is active, finds that kill.

        With an id of the caller's, a kill that was set under it before is found, also if it was cleared since.
        """
        check_kill(request, self._venues)
        if new_id is not None and (known := await self._kills.find(new_id)) is not None:
            return known
        return await self._set(request, new_id, await self._kills.active())

    async def set_by_program(self, request: KillRequest, new_id: KillId | None = None) -> Kill:
        """Set a kill in the name of a program; one of its own that covers the scope already is found.

        The program stops the whole account instead of one more strategy once the kills of programs are many, for this
        account or for all. It raises TooManyKills only if as many accounts were stopped that no room is left.
        """
        assert request.by in PROGRAMS, "kills of people are counted apart"
        assert request.everything or request.account is not None, "a program stops an account's orders, or everything"
        _check_request(request, self._venues)
        if new_id is not None and (known := await self._kills.find(new_id)) is not None:
            return known
        active = await self._kills.active()
        scope = request.account, request.strategy, request.venue, request.symbol
        for kill in active:
            if (kill.set_by, kill.mode) == (request.by, request.mode) and kill.covers_scope(*scope):
                return kill
        automatic = [kill for kill in active if kill.is_automatic]
        count = sum(kill.account_id == request.account for kill in automatic)
        if not request.everything and (
            count >= AUTOMATIC_ACCOUNT_KILLS_MAX or len(automatic) >= AUTOMATIC_STRATEGY_KILLS_MAX
        ):
            request = _of_whole_account(request, count)
        return await self._set(request, new_id, active)

    async def _set(self, request: KillRequest, new_id: KillId | None, active: Sequence[Kill]) -> Kill:
        new = Kill(
            kill_id=new_id or kill_id(fresh_ulid(self._clock, self._randomness)),
            account_id=request.account,
            strategy=request.strategy,
            venue=request.venue,
            symbol=request.symbol,
            mode=request.mode,
            set_by=request.by,
            set_reason=request.reason,
            set_at=self._clock.now(),
            version=1,
        )
        if (twin := active_twin(active, new)) is not None:
            return twin
        check_room(active, new)
        outcome = await self._commit(decisions.set_kill(new))
        if not isinstance(outcome, Committed):
            if outcome.kill is not None:
                return outcome.kill  # the same request was first, at another gateway or at the same time
            if new_id is not None and (known := await self._kills.find(new_id)) is not None:
                return known  # another process was first
            raise JournalUnavailable("the kill was not written: repeat the request")
        return msgspec.structs.replace(new, seq=outcome.first_seq)

    async def clear(self, kill_id: KillId, by: str, reason: str) -> Kill:
        """Clear a kill; raises KillCleared where it was cleared before."""
        check_label("by", by)
        check_label("reason", reason, REASON_LENGTH_MAX)
        for _ in range(TRIES_MAX):
            change = decisions.clear_kill(await self.find(kill_id), by, reason, self._clock.now())
            if isinstance(await self._commit(change), Committed):
                return change.kills[0]
        raise JournalUnavailable("the kill was not cleared: repeat the request")

    async def find(self, kill_id: KillId) -> Kill:
        """One kill; raises NotFound."""
        kill = await self._kills.find(kill_id)
        if kill is None:
            raise NotFound(f"the kill {kill_id} was not found; `switchyard kills list` shows them")
        return kill

    async def newest(self, *, before: int | None, limit: int) -> list[KillView]:
        """A page of all kills, newest first."""
        return [view_of(kill) for kill in await self._kills.newest(before=before, limit=limit)]

    async def state(self, kill_id: KillId, *, after: OrderId | None = None, limit: int = ORDERS_MAX) -> KillState:
        """What became of the kill's orders up to now; `orders` is the page after `after`."""
        kill = await self.find(kill_id)
        counts: Counter[OrderFate] = Counter()
        in_flight: list[OrderId] = []
        listed: list[KilledOrder] = []
        more = False
        last: OrderId | None = None
        while page := await self._kills.orders_of(kill_id, after=last, limit=PAGE_MAX):
            last = page[-1]
            states = await self._journal.load(page)
            for order_id in page:
                state = states[order_id]
                fate = fate_of(state, kill)
                counts[fate] += 1
                if is_in_flight(state) and len(in_flight) < IN_FLIGHT_MAX:
                    in_flight.append(order_id)
                if after is None or order_id > after:
                    more = more or len(listed) == limit
                    if len(listed) < limit:
                        listed.append(_killed(state, fate))
        is_ended = counts.total() == counts["CANCELED"] + counts["TOO_LATE"]
        return KillState(
            **msgspec.structs.asdict(view_of(kill)),
            in_flight=tuple(in_flight),
            drained=is_ended and not in_flight,
            counts={fate: count for fate, count in sorted(counts.items()) if count},
            orders=tuple(listed),
            next_cursor=listed[-1].order_id if more else None,
        )

    async def settled_state(self, kill_id: KillId, seconds_max: float) -> KillState:
        """The state after a kill was set or cleared: once no order is pending or in flight, or after a limited time."""
        end = self._clock.monotonic() + min(seconds_max, WAIT_SECONDS_MAX)
        while True:
            with after_commit():
                state = await self.state(kill_id)
            is_settled = not state.counts.get("PENDING") and not state.in_flight
            if is_settled or not state.active or self._clock.monotonic() >= end:
                return state
            await asyncio.sleep(POLL_SECONDS)


def check_room(active: Sequence[Kill], new: Kill) -> None:
    """Raise TooManyKills if people, or programs, have set as many kills as they may."""
    is_of_everything = new.described_scope == "everything"
    count = sum(kill.is_automatic == new.is_automatic for kill in active)
    count_max = (AUTOMATIC_KILLS_MAX if new.is_automatic else ACTIVE_KILLS_MAX) + (RESERVE if is_of_everything else 0)
    if count < count_max:
        return
    next_step = "look at their causes and clear some, `switchyard kills list` shows them"
    if not is_of_everything:
        next_step += "; a kill of everything can still be set"
    raise TooManyKills.of(count_max, "programs" if new.is_automatic else "people", next_step)


def check_kill(request: KillRequest, venues: Collection[VenueName]) -> None:
    """Raise InvalidField for a kill of a person that is malformed or that would cover nothing; needs no database."""
    if request.by in PROGRAMS:
        raise InvalidField(
            "by",
            f"{request.by!r} is the name of a program that sets kills: use a person's name (over HTTP it is the "
            "subject of the token)",
        )
    _check_request(request, venues)


def _check_request(request: KillRequest, venues: Collection[VenueName]) -> None:
    check_label("by", request.by)
    check_label("reason", request.reason, REASON_LENGTH_MAX)
    named = (request.account, request.strategy, request.venue, request.symbol)
    if request.everything and any(value is not None for value in named):
        raise InvalidField("everything", "name a scope or everything, not both")
    if not request.everything and all(value is None for value in named):
        raise InvalidField("everything", "name account, strategy, venue or symbol, or set everything to true")
    if request.account is not None:
        check_label("account", request.account)
    if request.strategy is not None:
        check_strategy(request.strategy)
    if request.venue is not None and request.venue not in venues:
        raise InvalidField("venue", f"{request.venue!r} is not configured; the venues are {', '.join(sorted(venues))}")
    if request.symbol is not None and not SYMBOL.fullmatch(request.symbol):
        raise InvalidField("symbol", f"must match {SYMBOL.pattern}")


def _of_whole_account(request: KillRequest, count: int) -> KillRequest:
    why = f"the whole account is stopped, because programs have set {count} kills of it"
    if count < AUTOMATIC_ACCOUNT_KILLS_MAX:
        why = f"the whole account is stopped, because programs have set {AUTOMATIC_STRATEGY_KILLS_MAX} kills or more"
    cause = f"strategy {request.strategy}: {request.reason}"
    reason = f"{why}; {cause}"[:REASON_LENGTH_MAX].rstrip()
    return msgspec.structs.replace(request, strategy=None, venue=None, symbol=None, reason=reason)


def _killed(state: OrderState, fate: OrderFate) -> KilledOrder:
    order = state.order
    return KilledOrder(
        order_id=order.order_id,
        account_id=order.account_id,
        symbol=order.symbol,
        venue=order.venue,
        status=order.status,
        fate=fate,
    )
