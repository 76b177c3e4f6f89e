"""Compares the tables of an account with its folded entries, at a moment at which neither changes. Reads only."""

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Final

from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.accounts import BookedAccount
from switchyard.domain.ledger.books import BalanceKey
from switchyard.domain.ledger.entries import LedgerHead
from switchyard.domain.ledger.holdings import Holding, HoldingKey, key_of
from switchyard.domain.reconcile.ledger import broken_chain, compare_sums, compare_tables, ledger_scope
from switchyard.flow.reconcile.collected import Collected
from switchyard.flow.reconcile.ledger_fold import AccountFold
from switchyard.ports.ledger import ENTRIES_MAX
from switchyard.ports.ledger_dump import LedgerDump
from switchyard.ports.ledger_lookup import LedgerLookup

# An account whose tables change faster than they are read is left for the next pass.
TRIES_MAX: Final = 3


async def compare_tables_of(
    fold: AccountFold,
    dump: LedgerDump,
    lookup: LedgerLookup,
    findings: Collected,
    advance: Callable[[AccountId], Awaitable[None]],
) -> None:
    """Add what differs; `advance` folds the account to its end."""
    account, scope = fold.account, ledger_scope(fold.account)
    for _ in range(TRIES_MAX):
        await advance(account)
        head = fold.head
        holdings, balances = await _tables(dump, account)
        stored = (await lookup.find_account(account) or BookedAccount(account_id=account)).head
        if stored.number >= head.number and not await dump.dumped_entries(account, head.number, 1):
            break
    else:
        findings.skip(scope, "the account is too busy to be read at one moment")
        return
    findings.compared.add(scope)
    if fold.chain or stored != head:
        _add_chain(fold, stored, findings)
        return
    findings.add_all(compare_tables(account, (fold.books.holdings, fold.books.balances), (holdings, balances)))
    findings.add_all(compare_sums(account, fold.books.balances))


def _add_chain(fold: AccountFold, stored: LedgerHead, findings: Collected) -> None:
    """Add what is wrong with the chain, except for entries that other breaks name.

    Entries that are gone and fills that the books lack are the same, as far as their numbers agree.
    """
    chain, missing = list(fold.chain), fold.missing
    if stored != fold.head:
        cut = stored.number - fold.head.number
        missing += cut
        problem = f"the last entry is {fold.head.number}, the account's row says {stored.number}"
        chain.append(broken_chain(fold.account, stored.number, cut, problem))
    lacking = findings.missing_here(fold.account)
    findings.add_all(one for one in chain if one.class_ != "missing_here" or missing > lacking)


async def _tables(dump: LedgerDump, account: AccountId) -> tuple[dict[HoldingKey, Holding], dict[BalanceKey, Decimal]]:
    """All rows of positions and balances of an account."""
    holdings: dict[HoldingKey, Holding] = {}
    after: HoldingKey = account, "", "", ""
    while page := await dump.dumped_holdings(after, ENTRIES_MAX):
        holdings |= {key_of(row): row for row in page}
        after = key_of(page[-1])
    balances: dict[BalanceKey, Decimal] = {}
    last: BalanceKey = account, "cash", ""
    while rows := await dump.dumped_balances(last, ENTRIES_MAX):
        balances |= rows
        last = rows[-1][0]
    return holdings, balances
