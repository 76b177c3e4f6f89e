"""The same books as the ledger's, as simply as possible: what happened, folded anew each time, in fractions."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date
from decimal import Decimal
from fractions import Fraction

import msgspec

from switchyard.domain.books.entries import parse_entry
from switchyard.domain.books.holdings import WHOLE_ACCOUNT
from switchyard.domain.ids import AccountId
from switchyard.ports.books import EntryFilter, Ledger, LedgerReports

Key = tuple[str, str]
PositionOf = tuple[str, str, str, str]
"""Account, strategy or `*`, symbol, currency."""


class Trade(msgspec.Struct, frozen=True):
    """A fill, or a position that an account began with; it stays in the list until it is taken back."""

    name: str
    account: str
    strategy: str
    symbol: str
    currency: str
    qty: Fraction
    """Below zero for a sale."""
    price: Fraction
    """With the multiplier."""
    fee: Fraction = Fraction(0)
    fee_currency: str = ""
    paid_from: str = "cash"


class PlainBooks:
    """What happened, in order, and what follows from it."""

    def __init__(self) -> None:
        self.trades: list[Trade] = []
        self.moves: list[tuple[str, str, str, Fraction]] = []
        """Account, ledger account, currency, amount: of people's entries that are no trades."""

    def take_back(self, name: str) -> None:
        self.trades = [trade for trade in self.trades if trade.name != name]

    def balances(self) -> dict[tuple[str, str, str], Fraction]:
        sums: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
        for trade in self.trades:
            money = trade.qty * trade.price
            sums[trade.account, trade.paid_from, trade.currency] -= money
            sums[trade.account, "trading", trade.currency] += money
            if trade.fee:
                sums[trade.account, "cash", trade.fee_currency] -= trade.fee
                sums[trade.account, "fees", trade.fee_currency] += trade.fee
        for account, name, currency, amount in self.moves:
            sums[account, name, currency] += amount
        return {key: amount for key, amount in sums.items() if amount}

    def positions(self) -> dict[PositionOf, tuple[Fraction, Fraction, Fraction]]:
        """Quantity, cost basis and realised P&L."""
        found: dict[PositionOf, tuple[Fraction, Fraction, Fraction]] = {}
        for trade in self.trades:
            for strategy in (WHOLE_ACCOUNT, trade.strategy):
                key = trade.account, strategy, trade.symbol, trade.currency
                held, cost, realised = found.get(key, (Fraction(0), Fraction(0), Fraction(0)))
                closing = Fraction(0)
                if held * trade.qty < 0:
                    closing = trade.qty if abs(trade.qty) <= abs(held) else -held
                    released = cost * -closing / held
                    realised += -closing * trade.price - released
                    cost -= released
                found[key] = held + trade.qty, cost + (trade.qty - closing) * trade.price, realised
        return found


async def agree(ledger: Ledger, reports: LedgerReports, plain: PlainBooks, accounts: Iterable[str]) -> None:
    """Money and units agree to the last digit, results of partly closed positions to the rounding of each close."""
    balances, positions = plain.balances(), plain.positions()
    for account in map(AccountId, accounts):
        shown = {(row.account, row.unit): row.amount for row in await ledger.balances(account, "", 500)}
        expected = {(name, unit): amount for (owner, name, unit), amount in balances.items() if owner == account}
        assert {key: Fraction(amount) for key, amount in shown.items() if amount} == expected
        for unit in {unit for _, unit in shown}:
            assert sum(amount for (_, each), amount in shown.items() if each == unit) == 0
        whole = await ledger.holdings(account, "", "", 500)
        open_ones = await reports.open_holdings(account, True, 500)
        for holding in [*whole, *open_ones]:
            key = account, holding.strategy, holding.symbol, holding.currency
            qty, cost, realised = positions.get(key, (Fraction(0),) * 3)
            assert Fraction(holding.qty) == qty
            tolerance = Fraction(holding.fills, 10**8)
            assert abs(Fraction(holding.cost_basis) - cost) <= tolerance
            assert abs(Fraction(holding.realised_pnl) - realised) <= tolerance
            assert holding.qty or not holding.cost_basis
        assert {(each.strategy, each.symbol, each.currency) for each in [*whole, *open_ones] if each.qty} == {
            key[1:] for key, (qty, _, _) in positions.items() if key[0] == account and qty
        }
        # No cash is lost to the rounding of positions.
        by_currency: dict[str, Decimal] = defaultdict(Decimal)
        for holding in whole:
            by_currency[holding.currency] += holding.cost_basis - holding.realised_pnl
        for unit, amount in by_currency.items():
            assert amount == shown.get(("trading", unit), Decimal(0))


async def agree_by_day(ledger: Ledger, reports: LedgerReports, accounts: Iterable[str]) -> None:
    """A day has the entries since the first with its date, and closes with the sums of all entries so far."""
    for account in map(AccountId, accounts):
        sums: dict[Key, Decimal] = defaultdict(Decimal)
        numbers: dict[date, list[int]] = defaultdict(list)
        closing: dict[date, dict[Key, Decimal]] = {}
        day = date.min
        for stored in await ledger.entries(EntryFilter(account_id=account)):
            entry = parse_entry(stored.text)
            # Days do not go back: what was closed stays as it was.
            day = max(day, entry.at.astimezone(UTC).date())
            numbers[day].append(stored.number)
            for leg in entry.legs:
                if not leg.account.startswith("position"):
                    sums[leg.account, leg.unit] += leg.amount
            closing[day] = {key: amount for key, amount in sums.items() if amount}
        for each, expected in closing.items():
            shown = await ledger.entries(EntryFilter(account_id=account, day=each))
            assert [entry.number for entry in shown] == numbers[each]
            balances = await reports.closing_balances(account, each, "", 500)
            assert {(row.account, row.unit): row.amount for row in balances if row.amount} == expected
