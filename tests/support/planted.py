"""Runs `switchyard` with a bug planted in it: a harness that does not fail then proves nothing.

Usage: python -m tests.support.planted BUG COMMAND …
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from switchyard.adapters.venues.http.venue import HttpVenue
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Outcome
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.flow.accept import OrderDesk
from switchyard.flow.dispatch import Dispatcher
from switchyard.flow.lanes import Turn
from switchyard.ports.venue import Capabilities, SendOutcome


def blind_requeue() -> None:
    """What is in doubt is simply sent again, whatever the venue promises."""

    def capabilities(venue: HttpVenue) -> Capabilities:
        return Capabilities(dedupe="forever", lookup="all")

    HttpVenue.capabilities = property(capabilities)  # type: ignore[assignment]


def sent_before_sending() -> None:
    """The row is marked as sent first, and the bytes leave afterwards."""
    send = Dispatcher._send

    async def marked_first(self: Dispatcher, row: OutboxRow, state: OrderState, turn: Turn | None) -> None:
        await self._commit(decisions.record_sent(state, row, "venue", self._clock.now()))
        await send(self, row, state, turn)

    Dispatcher._send = marked_first  # type: ignore[method-assign]


def doubt_is_rejection() -> None:
    """A lost answer is taken for a no."""
    honest = Dispatcher._outcome_change

    def guessing(self: Dispatcher, state: OrderState, row: OutboxRow, outcome: SendOutcome, now: Any) -> Change:
        change = honest(self, state, row, outcome, now)
        if change.orders[0].status == "UNKNOWN":
            return decisions.record_refused(state, row, "BROKER_REJECTED", now)
        return change

    Dispatcher._outcome_change = guessing  # type: ignore[method-assign]


def keys_are_forgotten() -> None:
    """The ledger is not written, as if its unique index were gone."""
    place = OrderDesk.place

    async def forgetful(self: OrderDesk, account: Any, body: Any, key: str | None) -> Any:
        commit = self._commit

        async def without_key(change: Change) -> Outcome:
            orders = tuple(
                msgspec.structs.replace(order, venue_client_id=order.order_id[-32:]) for order in change.orders
            )
            rows = tuple(msgspec.structs.replace(row, venue_client_id=row.order_id[-32:]) for row in change.outbox)
            return await commit(msgspec.structs.replace(change, ledger=(), orders=orders, outbox=rows))

        self._commit = without_key
        try:
            return await place(self, account, body, key)
        finally:
            self._commit = commit

    OrderDesk.place = forgetful  # type: ignore[method-assign]


def fence_removed() -> None:
    """An outcome is written by whoever has one, whether or not the attempt is still theirs."""

    async def unfenced(self: Dispatcher, row: OutboxRow, outcome: SendOutcome, state: OrderState) -> None:
        def decision(newest: OrderState) -> Change:
            return self._outcome_change(newest, newest.row(row.kind, row.number), outcome, self._clock.now())

        await self._record(row, decision, None)

    Dispatcher._settle = unfenced  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (blind_requeue, sent_before_sending, doubt_is_rejection, keys_are_forgotten, fence_removed)
}

if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    BUGS[sys.argv[1]]()
    sys.argv = ["switchyard", *sys.argv[2:]]
    run()
