"""Compares the tables of the books with the ledger's own entries, folded again. Pure."""

from collections.abc import Iterator, Mapping
from decimal import Decimal

from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.entries import IN_UNITS, LedgerEntry
from switchyard.domain.ledger.fold import BalanceKey
from switchyard.domain.ledger.holdings import Holding, HoldingKey, signed_qty
from switchyard.domain.money import EXACT, ZERO, canonical, plain
from switchyard.domain.reconcile.breaks import BreakClass, Difference


def ledger_scope(account: AccountId) -> str:
    """The comparison of an account's tables with its entries."""
    return f"ledger:{account}"


def compare_tables(
    account: AccountId,
    entries: tuple[Mapping[HoldingKey, Holding], Mapping[BalanceKey, Decimal]],
    tables: tuple[Mapping[HoldingKey, Holding], Mapping[BalanceKey, Decimal]],
) -> Iterator[Difference]:
    """Positions and balances of one account: `there` is what the entries give, `here` the tables."""
    scope = ledger_scope(account)
    for key in sorted(entries[0].keys() | tables[0].keys()):
        position, kept = entries[0].get(key), tables[0].get(key)
        if position == kept:
            continue
        amount, unit = _position_amount(position, kept)
        yield Difference(
            kind="ledger_position",
            class_=_class(position, kept),
            scope=scope,
            subject=key,
            account_id=account,
            amount=amount,
            unit=unit,
            here=_position_text(kept),
            there=_position_text(position),
        )
    for balance in sorted(entries[1].keys() | tables[1].keys()):
        given, stored = entries[1].get(balance), tables[1].get(balance)
        if given != stored:
            yield Difference(
                kind="ledger_balance",
                class_=_class(given, stored),
                scope=scope,
                subject=balance,
                account_id=account,
                amount=minus(given or ZERO, stored or ZERO),
                unit=balance[2],
                here="no row" if stored is None else plain(stored),
                there="no entry" if given is None else plain(given),
            )


def compare_sums(account: AccountId, balances: Mapping[BalanceKey, Decimal]) -> Iterator[Difference]:
    """Debits against credits, of the entries: each currency and each symbol sums to zero."""
    sums: dict[tuple[bool, str], Decimal] = {}
    for (_, name, unit), amount in balances.items():
        # A symbol such as BTC can be a currency too: each is summed alone.
        key = name in IN_UNITS, unit
        sums[key] = EXACT.add(sums.get(key, ZERO), amount)
    for (in_units, unit), total in sorted(sums.items()):
        if total:
            yield Difference(
                kind="ledger_sum",
                class_="amount",
                scope=ledger_scope(account),
                subject=(account, "units" if in_units else "money", unit),
                account_id=account,
                amount=canonical(total),
                unit=unit,
                here="debits less credits: 0",
                there=plain(total),
            )


def broken_chain(account: AccountId, number: int, missing: int, problem: str) -> Difference:
    """An entry that does not follow the one before it."""
    return Difference(
        kind="ledger_chain",
        class_="missing_here" if missing else "amount",
        scope=ledger_scope(account),
        subject=(account, str(number)),
        account_id=account,
        amount=Decimal(missing or 1),
        unit="",
        here=problem,
        there="entries without a gap, each with the hash of its text and of the one before it",
    )


def orphan(entry: LedgerEntry) -> Difference:
    """An entry that was booked from an event which the journal no longer has."""
    units = signed_qty(entry.side, entry.qty or ZERO) if entry.legs else ZERO
    return Difference(
        kind="orphan",
        class_="missing_there",
        scope=ledger_scope(entry.account_id),
        subject=(entry.account_id, entry.entry_id),
        account_id=entry.account_id,
        venue=entry.venue or None,
        order_id=entry.order_id or None,
        amount=minus(ZERO, units),
        unit=entry.symbol,
        here=f"entry {entry.number}, {entry.type}, of event {entry.seq}",
        there="the journal was restored and does not have that event",
    )


def minus(there: Decimal, here: Decimal) -> Decimal:
    """There less here, exactly."""
    return canonical(EXACT.subtract(there, here))


def _class(there: object, here: object) -> BreakClass:
    if here is None:
        return "missing_here"
    return "missing_there" if there is None else "amount"


def _position_amount(there: Holding | None, here: Holding | None) -> tuple[Decimal, str]:
    """The difference in units, or in money where the units agree."""
    one = there or here
    assert one is not None
    units = minus(ZERO if there is None else there.qty, ZERO if here is None else here.qty)
    if units or there is None or here is None:
        return units, one.symbol
    cost = minus(there.cost_basis, here.cost_basis)
    return cost or minus(there.realised_pnl, here.realised_pnl), one.currency


def _position_text(holding: Holding | None) -> str:
    if holding is None:
        return "no row"
    return f"{plain(holding.qty)}, cost {plain(holding.cost_basis)}, realised {plain(holding.realised_pnl)}"
