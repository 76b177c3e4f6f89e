"""The entries of the books that the journal no longer has, after a restored journal was adopted."""

from collections.abc import Iterable, Sequence

from switchyard.domain.books.entries import LedgerEntry
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.reconcile.breaks import StatementFill


class Orphans:
    """By account, and by venue and execution id."""

    def __init__(self, entries: Iterable[LedgerEntry]) -> None:
        self._by_account: dict[AccountId, list[LedgerEntry]] = {}
        self._accounts: dict[tuple[str, str], AccountId] = {}
        for entry in entries:
            self._by_account.setdefault(entry.account_id, []).append(entry)
            if entry.exec_id is not None:
                self._accounts[entry.venue, entry.exec_id] = entry.account_id

    def of(self, account: AccountId) -> Sequence[LedgerEntry]:
        """The account's orphans."""
        return self._by_account.get(account, ())

    def order_ids(self, account: AccountId) -> set[OrderId]:
        """The orders that they belong to."""
        return {entry.order_id for entry in self.of(account)}

    def account_of(self, venue: VenueName, fill: StatementFill) -> AccountId | None:
        """The account of the orphan that books this fill."""
        return self._accounts.get((venue, fill.exec_id))
