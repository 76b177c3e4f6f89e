"""The duplicate window: an account's equal orders, whatever their idempotency keys.

An order claims its content before it is written, as a row of the key store with an operation of its own. The commit
decides which order owns a content, so two equal orders at the same time cannot both pass, over any number of gateways.
The claims are not in the journal: they last for seconds, and a rebuilt database starts without them.
"""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec

from switchyard.domain.errors import JournalUnavailable, SwitchyardError, Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.risk.checks import CheckResult, Violation
from switchyard.domain.risk.claims import CONTENT, content_digest
from switchyard.flow.commit.sequencer import Commit
from switchyard.ports.clock import Clock
from switchyard.ports.queries import KeyStore

# The first attempt, and one more for each claim that expires, or is given up, in between.
ATTEMPTS_MAX = 8


class Claim:
    """The right to place an order with a content; given up unless the order is accepted."""

    def __init__(self, entry: KeyEntry | None = None, violation: Violation | None = None) -> None:
        self.entry = entry
        """None where nothing has to be given up."""
        self.violation = violation
        self.is_used = False
        """Whether an order was accepted under it."""


class RecentContents:
    """Claims the content of new orders; without a window none has to."""

    def __init__(self, window: timedelta, *, keys: KeyStore, commit: Commit, clock: Clock) -> None:
        self._window = window
        self._keys = keys
        self._commit = commit
        self._clock = clock

    @property
    def is_on(self) -> bool:
        """Whether there is a window."""
        return bool(self._window)

    @contextlib.asynccontextmanager
    async def claimed(self, account: AccountId, order: OrderRequest, owner: str) -> AsyncIterator[Claim]:
        """Claim the order's content for as long as the window, or find the violation.

        `owner` identifies the intent, which may claim its content again; empty for a request without a key.
        """
        claim = await self._claim(account, order, owner)
        try:
            yield claim
        except Unavailable:  # nothing was written; after any other error the order may be there
            await self._give_up(claim)
            raise
        if not claim.is_used:
            await self._give_up(claim)

    async def checks(self, account: AccountId, order: OrderRequest) -> list[CheckResult]:
        """Return whether the content is free, for the dry run; claims nothing."""
        if not self._window:
            return []
        entry = await self._keys.entry(account, CONTENT, content_digest(order))
        is_taken = entry is not None and self._clock.now() < entry.expiry(self._clock.jumped_at)
        return [CheckResult("DUPLICATE_CONTENT", self._violation() if is_taken else None)]

    async def _claim(self, account: AccountId, order: OrderRequest, owner: str) -> Claim:
        digest = content_digest(order)
        generation, version = 0, 1
        for _ in range(ATTEMPTS_MAX):
            now = self._clock.now()
            entry = KeyEntry(
                account_id=account,
                operation=CONTENT,
                idempotency_key=digest,
                generation=generation,
                order_id=OrderId(""),
                request_digest=owner,
                created_at=now,
                expires_at=now + self._window,
                version=version,
            )
            outcome = await self._commit(Change(keys=(entry,)))
            if isinstance(outcome, Committed):
                return Claim(entry)
            existing = outcome.key
            if existing is None:  # it was removed after it had expired
                generation, version = 0, 1
            elif owner and existing.request_digest == owner:
                return Claim()
            elif now < existing.expiry(self._clock.jumped_at):
                return Claim(violation=self._violation())
            else:
                generation, version = existing.generation + 1, existing.version + 1
        raise JournalUnavailable(f"the order's content was not claimed in {ATTEMPTS_MAX} attempts: repeat the request")

    async def _give_up(self, claim: Claim) -> None:
        if claim.entry is None:
            return
        ended = msgspec.structs.replace(claim.entry, expires_at=claim.entry.created_at, version=claim.entry.version + 1)
        with contextlib.suppress(SwitchyardError):  # it expires by itself
            await self._commit(Change(keys=(ended,)))

    def _violation(self) -> Violation:
        seconds = self._window.total_seconds()
        return Violation(
            "DUPLICATE_CONTENT", f"an equal order was placed less than {seconds:g} s ago (RISK_DUPLICATE_WINDOW_SEC)"
        )
