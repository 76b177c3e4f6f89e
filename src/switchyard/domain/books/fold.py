"""Folds entries into balances, holdings and results, and once more after a correction. Pure."""

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from switchyard.domain.books.entries import MOVES_POSITIONS, BookedAccount, LedgerAccount, LedgerEntry, Unbalanced
from switchyard.domain.books.holdings import (
    WHOLE_ACCOUNT,
    Holding,
    HoldingKey,
    Result,
    ResultKey,
    Target,
    after_fill,
    after_reversal,
    day_of,
    keys_of,
    results_of,
)
from switchyard.domain.ids import AccountId
from switchyard.domain.values import EXACT, ZERO, canonical

BalanceKey = tuple[AccountId, LedgerAccount, str]
"""Account, ledger account, unit."""


class Moved(msgspec.Struct, frozen=True):
    """What an entry makes of balances and positions."""

    balances: dict[BalanceKey, Decimal]
    holdings: dict[HoldingKey, Holding]
    realised: Decimal = ZERO
    strategy_realised: Decimal = ZERO


_NOTHING = Moved({}, {})
_MAY_MOVE = MOVES_POSITIONS | {"Reversal"}


class Fold:
    """The rows that entries touch, and what became of them."""

    def __init__(self, accounts: Iterable[BookedAccount] = ()) -> None:
        self.accounts: dict[AccountId, BookedAccount] = {account.account_id: account for account in accounts}
        self.holdings: dict[HoldingKey, Holding] = {}
        self.balances: dict[BalanceKey, Decimal] = {}
        self.changed_holdings: set[HoldingKey] = set()
        self.changed_balances: set[BalanceKey] = set()
        self.changed_accounts: set[AccountId] = set()
        self.results: dict[ResultKey, Result] = {}
        """What the entries add to the results."""
        self.day_balances: dict[tuple[BalanceKey, date], Decimal] = {}
        """The balances at the end of the days that the entries belong to, so far."""
        self.day_holdings: dict[tuple[HoldingKey, date], Holding] = {}
        """The same of the accounts' positions."""

    def apply(self, entry: LedgerEntry) -> None:
        """Fold a stored entry into balances, positions and results; raises Unbalanced where its results are wrong."""
        moved = self.moved(entry)
        if entry.type in MOVES_POSITIONS and (entry.realised_pnl, entry.strategy_pnl) != (
            moved.realised,
            moved.strategy_realised,
        ):
            raise Unbalanced(
                f"its realised P&L is {entry.realised_pnl}, its strategy's {entry.strategy_pnl}; the entries before it "
                f"give {moved.realised} and {moved.strategy_realised}"
            )
        account = self.account(entry.account_id)
        reached_at = later(account.reached_at, entry.at)
        self.set_account(replace(account, reached_at=reached_at))
        self.accept(entry, moved, reached_at)

    def account(self, account_id: AccountId) -> BookedAccount:
        """The account's row; a new one before its first event."""
        return self.accounts.get(account_id) or BookedAccount(account_id=account_id)

    def set_account(self, account: BookedAccount) -> None:
        """Change an account's row."""
        self.accounts[account.account_id] = account
        self.changed_accounts.add(account.account_id)

    def moved(self, entry: LedgerEntry) -> Moved:
        """What the entry makes of the rows, which are not changed yet."""
        if not entry.legs and entry.type not in _MAY_MOVE:
            return _NOTHING  # a memo
        balances: dict[BalanceKey, Decimal] = {}
        for leg in entry.legs:
            key = entry.account_id, leg.account, leg.unit
            before = balances.get(key, self.balances.get(key, ZERO))
            balances[key] = canonical(EXACT.add(before, leg.amount))
        if not entry.qty or entry.type not in _MAY_MOVE:
            return Moved(balances, {})
        whole, strategy = keys_of(entry)
        held, by_strategy = self.holdings.get(whole), self.holdings.get(strategy)
        if entry.type == "Reversal":
            after = {
                whole: after_reversal(whole, held, entry, entry.cost_change, entry.realised_pnl),
                strategy: after_reversal(strategy, by_strategy, entry, entry.strategy_cost_change, entry.strategy_pnl),
            }
        else:
            after = {whole: after_fill(whole, held, entry), strategy: after_fill(strategy, by_strategy, entry)}
        return Moved(
            balances,
            after,
            realised=_realised(held, after[whole]),
            strategy_realised=_realised(by_strategy, after[strategy]),
        )

    def accept(self, entry: LedgerEntry, moved: Moved, reached_at: datetime) -> None:
        """Change the rows as the entry does."""
        day = day_of(reached_at)
        for balance, amount in moved.balances.items():
            self.balances[balance] = amount
            self.changed_balances.add(balance)
            self.day_balances[balance, day] = amount
        for of, holding in moved.holdings.items():
            self.holdings[of] = holding
            self.changed_holdings.add(of)
            if of[1] == WHOLE_ACCOUNT:
                self.day_holdings[of, day] = holding
        for key, result in results_of(entry, day):
            self.results[key] = self.results.get(key, Result()) + result


def _realised(before: Holding | None, after: Holding) -> Decimal:
    if before is None:
        return after.realised_pnl
    if after.realised_pnl is before.realised_pnl:
        return ZERO
    return canonical(EXACT.subtract(after.realised_pnl, before.realised_pnl))


def change_of(before: Holding | None, after: Holding | None) -> tuple[Decimal, Decimal]:
    """What changed of cost basis and realised P&L."""
    old = (ZERO, ZERO) if before is None else (before.cost_basis, before.realised_pnl)
    new = (ZERO, ZERO) if after is None else (after.cost_basis, after.realised_pnl)
    return canonical(EXACT.subtract(new[0], old[0])), canonical(EXACT.subtract(new[1], old[1]))


def later(reached_at: datetime | None, at: datetime) -> datetime:
    """The later of the time reached so far, if any, and another."""
    return at if reached_at is None else max(at, reached_at)


class Refold:
    """Folds the entries of an account that were not reversed, in order, into the positions that one of them moved."""

    def __init__(self, target: LedgerEntry) -> None:
        self._target = target
        self._keys = frozenset(keys_of(target))
        self._holdings: dict[HoldingKey, Holding] = {}

    @property
    def is_needed(self) -> bool:
        """Whether the target moved a position at all."""
        return self._target.type in MOVES_POSITIONS and bool(self._target.qty)

    def add(self, entry: LedgerEntry) -> None:
        """Fold the next entry."""
        if entry.entry_id == self._target.entry_id or not entry.qty:
            return
        for key in keys_of(entry):
            if key in self._keys:
                self._holdings[key] = after_fill(key, self._holdings.get(key), entry)

    def target(self) -> Target:
        """The entry, with the positions without it."""
        return Target(self._target, False, self._holdings)
