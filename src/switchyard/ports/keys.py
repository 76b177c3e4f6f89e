"""The idempotency keys as requests and its caretaker see it; it is written by the journal alone."""

from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId

KeyId = tuple[str, str, str]


class Reaped(msgspec.Struct, frozen=True):
    """How far a walk through the key store has come, and what it took away."""

    count: int
    after: KeyId | None
    """Where the next page begins; none at the end."""


class KeyStore(Protocol):
    """Lookups by key, and the removal of what nobody can ask for any more."""

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """What the key stands for, expired or not."""
        ...

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries made after that moment whose keys lie between the two, both included."""
        ...

    async def reap(self, now: datetime, after: KeyId | None, limit: int) -> Reaped:
        """Look at the next entries and remove those that have expired and whose order is final."""
        ...

    async def now(self) -> datetime:
        """The database's own time: one clock for all gateways."""
        ...
