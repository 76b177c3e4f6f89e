"""Compares the tables of an account with its folded entries, at one moment of the ledger. Reads only."""

from collections.abc import Awaitable, Callable

from switchyard.domain.books.entries import LedgerHead
from switchyard.domain.ids import AccountId
from switchyard.domain.reconcile.matching import broken_chain, compare_sums, compare_tables, ledger_scope
from switchyard.flow.reconcile.collected import Collected
from switchyard.flow.reconcile.ledger_fold import AccountFold
from switchyard.ports.books import LedgerLookup


async def compare_tables_of(
    fold: AccountFold,
    lookup: LedgerLookup,
    findings: Collected,
    advance: Callable[[AccountId, int], Awaitable[None]],
) -> None:
    """Add what differs; `advance` folds the account up to an entry."""
    account = fold.account
    tables = await lookup.tables(account)
    await advance(account, tables.head.number)
    scope = ledger_scope(account)
    if fold.chain or fold.head != tables.head:
        _add_chain(fold, tables.head, findings)
        # Breaks of the tables must not close because of it.
        findings.skip(scope, "the chain of its entries is broken, so its tables cannot be compared with them")
        return
    findings.compared.add(scope)
    entries = fold.books.holdings, fold.books.balances
    findings.add_all(compare_tables(account, entries, (tables.holdings, tables.balances)))
    findings.add_all(compare_sums(account, fold.books.balances))


def _add_chain(fold: AccountFold, stored: LedgerHead, findings: Collected) -> None:
    """Add what is wrong with the chain, except for entries that other breaks name.

    Entries that are gone and fills that the books lack are the same, as far as their numbers agree.
    """
    chain, missing = list(fold.chain), fold.missing
    if stored != fold.head:
        cut = max(stored.number - fold.head.number, 0)
        missing += cut
        problem = f"the last entry is {fold.head.number}, the account's row says {stored.number}"
        chain.append(broken_chain(fold.account, stored.number, cut, problem))
    lacking = findings.missing_here(fold.account)
    findings.add_all(one for one in chain if one.class_ != "missing_here" or missing > lacking)
