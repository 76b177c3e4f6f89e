"""The rows of the books' tables, as both engines store them; the statements are each engine's own."""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.adapters.tables import moment
from switchyard.domain.books.books import Books
from switchyard.domain.books.entries import Adoption, BookedAccount, LedgerAccount, LedgerHead, parse_entry
from switchyard.domain.books.holdings import Holding, Result, key_of
from switchyard.domain.books.manual import ManualConflict, ManualEntry, digest_of_manual, entry_id_of_manual
from switchyard.domain.books.postings import BookedOrder
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import SourcePosition
from switchyard.domain.values import EXACT, canonical, plain
from switchyard.ports.books import AccountTables, Entered, OwnershipLost, Posted, SourceClaim, StoredEntry

Row = tuple[Any, ...]

order_decoder = msgspec.json.Decoder(BookedOrder)
holding_decoder = msgspec.json.Decoder(Holding)
position_decoder: msgspec.json.Decoder[SourcePosition] = msgspec.json.Decoder(SourcePosition)


class Written:
    """The rows that a page changed, by table.

    `time` and `day` make the engine's values.
    """

    def __init__(self, books: Books, time: Callable[[datetime], Any], day: Callable[[date], Any]) -> None:
        self.entries: list[Row] = []
        self.legs: list[Row] = []
        for new in books.entries:
            line = new.line
            entry = line.entry
            at = time(entry.at)
            self.entries.append(
                (
                    entry.account_id,
                    entry.number,
                    entry.entry_id,
                    entry.type,
                    entry.order_id,
                    entry.symbol,
                    entry.strategy,
                    entry.by,
                    entry.seq,
                    at,
                    at if new.reached_at is entry.at else time(new.reached_at),
                    line.text,
                    line.hash,
                )
            )
            for number, leg in enumerate(entry.legs, 1):
                self.legs.append((entry.account_id, entry.number, number, leg.account, leg.unit, leg.amount))
        self.accounts: list[Row] = [_account_row(books.accounts[key], time) for key in sorted(books.changed_accounts)]
        self.orders: list[Row] = [(key, json_text(books.orders[key])) for key in sorted(books.changed_orders)]
        self.positions: list[Row] = [
            (*key, books.holdings[key].qty == 0, json_text(books.holdings[key]))
            for key in sorted(books.changed_holdings)
        ]
        self.balances: list[Row] = [(*key, books.balances[key]) for key in sorted(books.changed_balances)]
        self.day_balances: list[Row] = [
            (*key, day(date_), amount) for (key, date_), amount in sorted(books.day_balances.items())
        ]
        self.day_positions: list[Row] = [
            (key[0], key[2], key[3], day(date_), json_text(holding))
            for (key, date_), holding in sorted(books.day_holdings.items(), key=lambda item: item[0])
        ]
        self.results: list[Row] = [
            (account, day(date_), symbol, currency, strategy, *msgspec.structs.astuple(books.results[key]))
            for key in sorted(books.results)
            for account, date_, symbol, currency, strategy in [key]
        ]
        self.reversals: list[Row] = [(each.entry_id, each.reversal_id, each.replacement_id) for each in books.reversed]
        self.confirmed: list[str] = sorted(books.confirmed)


class Tally:
    """What the parts of a page did."""

    def __init__(self) -> None:
        self.entries = self.skipped = self.repeats = self.notes = self.halted = 0

    def add(self, books: Books) -> None:
        """Count a part."""
        self.entries += len(books.entries)
        self.skipped += books.skipped
        self.repeats += books.repeats
        self.notes += sum(len(new.entry.notes) for new in books.entries)
        self.halted += books.halted

    def posted(self, claim: SourceClaim, read_at: datetime | None) -> Posted:
        """The result of the page."""
        return Posted(
            claim=claim,
            read_at=read_at,
            entries=self.entries,
            skipped=self.skipped,
            repeats=self.repeats,
            notes=self.notes,
            halted=self.halted,
        )


def account_of(row: Sequence[Any]) -> BookedAccount:
    """The account of a row of the table."""
    account_id, entries, digest, reached_at, epoch, seq, halted_seq, halted = row
    return BookedAccount(
        account_id=account_id,
        head=LedgerHead(entries, digest),
        reached_at=moment(reached_at),
        epoch=epoch,
        seq=seq,
        halted_seq=halted_seq,
        halted=halted,
    )


def adoption_of(row: Sequence[Any]) -> Adoption:
    """The adoption of a row of the table."""
    epoch, after_seq, first_seq, by, reason, at = row
    return Adoption(epoch=epoch, after_seq=after_seq, first_seq=first_seq, by=by, reason=reason, at=moment(at))


def decode_holding(row: Sequence[Any]) -> Holding:
    """The position of a row with its body."""
    return holding_decoder.decode(row[0])


def result_of(columns: Sequence[Any]) -> Result:
    """The result of the columns that have its amounts."""
    realised, strategy_realised, fees, fills = columns
    return Result(
        realised=Decimal(realised), strategy_realised=Decimal(strategy_realised), fees=Decimal(fees), fills=fills
    )


def check_owned(claim: SourceClaim, row: Sequence[Any] | None) -> None:
    """The fence: raise OwnershipLost unless the source's position and generation are those of the claim."""
    if row is None:
        raise OwnershipLost(claim.source, "it was never claimed")
    position, generation = row
    if generation != claim.generation:
        raise OwnershipLost(claim.source, f"it was claimed {generation} times, this claim is number {claim.generation}")
    if (found := position_decoder.decode(position)) != claim.position:
        raise OwnershipLost(claim.source, f"it was read to {found}, not to {claim.position}")


def entered_before(wanted: ManualEntry, of_key: Sequence[Any] | None, of_id: Sequence[Any] | None) -> Entered | None:
    """The entry that an earlier request with the same key booked; none where the entry is new.

    `of_key` and `of_id` are the stored entries with its key and with its id. Raises ManualConflict where the key was
    used for something else, and InvalidField for an execution that is booked already.
    """
    if of_key is not None:
        stored = StoredEntry(*of_key)
        if parse_entry(stored.text).digest != digest_of_manual(wanted):
            raise ManualConflict(wanted.key)
        return Entered(stored, True)
    if of_id is not None:
        raise InvalidField("execId", f"is booked already: see the entry {entry_id_of_manual(wanted)}")
    return None


def add_amounts(first: str, second: str) -> str:
    """The sum of two amounts as text, for an engine without decimals."""
    return plain(EXACT.add(Decimal(first), Decimal(second)))


def json_text(value: object) -> str:
    """The value as JSON."""
    return msgspec.json.encode(value).decode()


def _account_row(account: BookedAccount, time: Callable[[datetime], Any]) -> Row:
    return (
        account.account_id,
        account.head.number,
        account.head.hash,
        None if account.reached_at is None else time(account.reached_at),
        account.epoch,
        account.seq,
        account.halted_seq,
        account.halted,
    )


_bodies = msgspec.json.Decoder(list[str])
_balances = msgspec.json.Decoder(list[tuple[LedgerAccount, str, str]])


def tables_of(account: AccountId, row: Sequence[Any] | None) -> AccountTables:
    """An account's tables, from a row with number and hash of its last entry, and its rows as JSON."""
    if row is None:
        return AccountTables(LedgerHead(), {}, {})
    number, digest, positions, balances = row
    holdings = [holding_decoder.decode(body) for body in _bodies.decode(positions or "[]")]
    amounts = _balances.decode(balances or "[]")
    return AccountTables(
        LedgerHead(number, digest),
        {key_of(holding): holding for holding in holdings},
        {(account, name, unit): canonical(Decimal(amount)) for name, unit, amount in amounts},
    )
