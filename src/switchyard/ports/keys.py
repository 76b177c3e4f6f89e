"""The idempotency key store port: lookups and removal; only the journal's append writes entries."""

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import KeyEntry

KeyId = tuple[str, str, str]
"""Account, operation, key."""


class Reaped(msgspec.Struct, frozen=True):
    """The result of one page of removal."""

    count: int
    """Entries removed."""
    after: KeyId | None
    """Start of the next page; None at the end."""


class KeyStore(Protocol):
    """Entries by (account, operation, key)."""

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """Return the entry of a key, even if it has expired.

        Raises OutcomeUnknown if there is one that a failover to the synchronous standby would lose.
        """
        ...

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Return entries created after `since` whose keys lie between `first` and `last`, both included."""
        ...

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next `limit` entries and remove those past `KeyEntry.expiry` whose order is final.

        Entries of the operations `kept` stay.
        """
        ...
