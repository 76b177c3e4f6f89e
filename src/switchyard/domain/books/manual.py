"""Entries by a person: deposits, opening positions, adjustments, fees, conversions, foreign fills and reversals.

Pure. They are no function of the journal. Each names the account's last event before it, so that a rebuild puts it at
the same place of the account's chain.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal, DecimalException
from typing import Final, Literal, TypeVar, assert_never

import msgspec

from switchyard.domain.books.entries import LedgerEntry, Leg, fill_entry_id, manual_entry_id, reversal_entry_id
from switchyard.domain.books.postings import fee_legs, trade_legs
from switchyard.domain.errors import IdempotencyConflict, InvalidField, RequestError
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.orders.order import Side
from switchyard.domain.values import (
    DECIMALS_MAX,
    EXACT,
    ONE,
    ROUNDED,
    SYMBOL,
    ZERO,
    canonical,
    check_label,
    check_strategy,
    is_account,
    positive_amount,
    signed_amount,
)

T = TypeVar("T")

ManualType = Literal[
    "Deposit",
    "Withdrawal",
    "OpeningBalance",
    "OpeningPosition",
    "Adjustment",
    "Fee",
    "Conversion",
    "Fill",  # an execution that the journal does not have
    "Reversal",
]
TEXT_LENGTH_MAX = 255
EXTERNAL: Final = "external"
"""The strategy of a fill that no order of ours explains."""
# Clocks of two machines that are set by NTP differ by less.
AHEAD_MAX = timedelta(minutes=1)
_MINOR_UNITS: Mapping[str, int] = {"JPY": 0, "KRW": 0, "BTC": 8, "ETH": 8}
_MINOR_UNITS_DEFAULT = 2


class ManualEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What a person asks the ledger to book; which fields are needed depends on the type."""

    type: ManualType
    account_id: AccountId
    key: str
    """Makes a repeat harmless: the same key books once."""
    by: str
    reason: str
    currency: str = ""
    amount: Decimal | None = None
    """Above zero; an adjustment, an opening balance and a fee may be below."""
    to_currency: str | None = None
    """Of a conversion."""
    to_amount: Decimal | None = None
    """What came out of a conversion; or `rate`."""
    rate: Decimal | None = None
    """Units of `to_currency` for one of `currency`; the result is rounded once."""
    decimals: int | None = None
    """Of the rounded result; those of the currency's smallest unit where it is not given."""
    symbol: str | None = None
    side: Side | None = None
    qty: Decimal | None = None
    price: Decimal | None = None
    multiplier: Decimal = ONE
    strategy: str | None = None
    venue: str | None = None
    exec_id: str | None = None
    fee: Decimal | None = None
    fee_currency: str | None = None
    reverses: str | None = None
    """The id of the entry that a reversal takes back."""
    effective_at: datetime | None = None
    """When it happened, if that is known."""


class ManualConflict(IdempotencyConflict):
    """The key was used for an entry with another content."""

    def __init__(self, key: str) -> None:
        RequestError.__init__(self, f"the key {key!r} was used for an entry with another content", field="key")
        self.key = key


def entry_id_of_manual(wanted: ManualEntry) -> str:
    """The id of the entry: of a fill that of its execution, so that the journal cannot book it again."""
    match wanted.type:
        case "Fill":
            return fill_entry_id(wanted.venue or "", wanted.account_id, wanted.exec_id or "")
        case "Reversal":
            return reversal_entry_id(wanted.account_id, wanted.key)
        case _:
            return manual_entry_id(wanted.account_id, wanted.key)


def digest_of_manual(wanted: ManualEntry) -> str:
    """What compares two requests with the same key, by meaning: 1000 and 1000.0 are the same amount."""
    fields = msgspec.structs.asdict(wanted).items()
    amounts = {name: _meant(value) for name, value in fields if isinstance(value, Decimal)}
    return hashlib.sha256(encode(msgspec.structs.replace(wanted, **amounts))).hexdigest()


def _meant(amount: Decimal) -> Decimal:
    try:
        return canonical(amount)
    except DecimalException:
        return amount  # out of all bounds: it is rejected, or no entry has it


def check_manual(wanted: ManualEntry) -> None:
    """Raise InvalidField where a field is missing or wrong."""
    if not is_account(wanted.account_id):
        raise InvalidField("accountId", "is no account id")
    for name in ("key", "by", "reason"):
        check_label(name, getattr(wanted, name), TEXT_LENGTH_MAX)
    for name, text in (("venue", wanted.venue), ("execId", wanted.exec_id), ("reverses", wanted.reverses)):
        if text is not None:
            check_label(name, text, TEXT_LENGTH_MAX)
    if wanted.strategy is not None:
        check_strategy(wanted.strategy)
    if wanted.effective_at is not None and wanted.effective_at.tzinfo is None:
        raise InvalidField("effectiveAt", "must have an offset, such as 2025-03-04T09:30:00Z")
    if wanted.type == "Reversal":
        _needed(wanted.reverses, "reverses")
        return
    _check_currency("currency", wanted.currency)
    if wanted.fee_currency is not None:
        _check_currency("feeCurrency", wanted.fee_currency)
    if wanted.symbol is not None and not SYMBOL.fullmatch(wanted.symbol):
        raise InvalidField("symbol", f"must match {SYMBOL.pattern}")


def check_has_happened(wanted: ManualEntry, now: datetime) -> None:
    """Raise InvalidField where a person states a time that has not come yet."""
    if wanted.effective_at is not None and wanted.effective_at - now > AHEAD_MAX:
        raise InvalidField(
            "effectiveAt", f"is in the future: {wanted.effective_at.isoformat()}; an entry is of the past"
        )


def manual_entry(wanted: ManualEntry, *, seq: int, at: datetime) -> LedgerEntry:
    """The entry, apart from a reversal; its number is set when it is added. Raises InvalidField."""
    assert wanted.type != "Reversal", "a reversal needs the entry that it reverses"
    check_manual(wanted)
    entry = LedgerEntry(
        number=0,
        entry_id=entry_id_of_manual(wanted),
        type=wanted.type,
        account_id=wanted.account_id,
        seq=seq,
        at=at,
        currency=wanted.currency,
        symbol=wanted.symbol or "",
        strategy=wanted.strategy,
        effective_at=wanted.effective_at,
        by=wanted.by,
        reason=wanted.reason,
        key=wanted.key,
        digest=digest_of_manual(wanted),
        legs=_exact_legs(wanted),
    )
    if wanted.type not in ("Fill", "OpeningPosition"):
        return entry
    return msgspec.structs.replace(
        entry,
        venue=VenueName(wanted.venue or ""),
        side=wanted.side,
        qty=canonical(wanted.qty or ZERO),
        price=canonical(wanted.price or ZERO),
        multiplier=wanted.multiplier,
        exec_id=wanted.exec_id,
        fee=wanted.fee or None,
        fee_currency=(wanted.fee_currency or wanted.currency) if wanted.fee else None,
        strategy=wanted.strategy or (EXTERNAL if wanted.type == "Fill" else None),
    )


def _exact_legs(wanted: ManualEntry) -> tuple[Leg, ...]:
    try:
        return _legs(wanted)
    except DecimalException:
        raise too_precise(wanted) from None


def too_precise(wanted: ManualEntry) -> InvalidField:
    """The error of an entry whose amounts, or the sums with them, would have to be rounded."""
    field = "qty" if wanted.qty is not None else "amount"
    return InvalidField(field, f"the amounts have more than {EXACT.prec} digits in the books: they would be rounded")


def _legs(wanted: ManualEntry) -> tuple[Leg, ...]:
    currency = wanted.currency
    match wanted.type:
        case "Deposit":
            amount = positive_amount(_needed(wanted.amount, "amount"), "amount")
            return Leg("cash", currency, amount), Leg("capital", currency, EXACT.minus(amount))
        case "Withdrawal":
            amount = positive_amount(_needed(wanted.amount, "amount"), "amount")
            return Leg("cash", currency, EXACT.minus(amount)), Leg("capital", currency, amount)
        case "OpeningBalance":
            amount = _signed(wanted)
            return Leg("cash", currency, amount), Leg("capital", currency, EXACT.minus(amount))
        case "Adjustment":
            amount = _signed(wanted)
            return Leg("cash", currency, amount), Leg("adjustments", currency, EXACT.minus(amount))
        case "Fee":
            return fee_legs(_signed(wanted), currency)
        case "Conversion":
            return _conversion_legs(wanted)
        case "OpeningPosition":
            if wanted.fee is not None:
                raise InvalidField("fee", "an opening position has none: book it by an entry of the type Fee")
            return _trade_legs(wanted, "capital")
        case "Fill":
            _needed(wanted.venue, "venue")
            _needed(wanted.exec_id, "execId")
            fee = signed_amount(wanted.fee or ZERO, "fee")
            return *_trade_legs(wanted, "cash"), *fee_legs(fee, wanted.fee_currency or currency)
        case "Reversal":
            return ()
        case unreachable:
            assert_never(unreachable)


def _trade_legs(wanted: ManualEntry, paid: Literal["cash", "capital"]) -> tuple[Leg, ...]:
    return trade_legs(
        _needed(wanted.symbol, "symbol"),
        _needed(wanted.side, "side"),
        positive_amount(_needed(wanted.qty, "qty"), "qty"),
        signed_amount(_needed(wanted.price, "price"), "price"),
        positive_amount(wanted.multiplier, "multiplier"),
        wanted.currency,
        paid,
    )


def _conversion_legs(wanted: ManualEntry) -> tuple[Leg, ...]:
    """Each currency balances alone; the result is rounded once, and the residue goes to `rounding`."""
    currency, to_currency = wanted.currency, _needed(wanted.to_currency, "toCurrency")
    _check_currency("toCurrency", to_currency)
    if to_currency == currency:
        raise InvalidField("toCurrency", "must be another currency")
    if (wanted.to_amount is None) == (wanted.rate is None):
        raise InvalidField("rate", "needed, or else `toAmount`; not both")
    amount = positive_amount(_needed(wanted.amount, "amount"), "amount")
    if wanted.rate is None:
        exact = result = positive_amount(_needed(wanted.to_amount, "toAmount"), "toAmount")
    else:
        decimals = _MINOR_UNITS.get(to_currency, _MINOR_UNITS_DEFAULT) if wanted.decimals is None else wanted.decimals
        if not 0 <= decimals <= DECIMALS_MAX:
            raise InvalidField("decimals", f"must be from 0 to {DECIMALS_MAX}")
        exact = canonical(EXACT.multiply(amount, positive_amount(wanted.rate, "rate")))
        result = canonical(ROUNDED.quantize(exact, ONE.scaleb(-decimals)))
    residue = canonical(EXACT.subtract(exact, result))
    return (
        Leg("cash", currency, EXACT.minus(amount)),
        Leg("conversion", currency, amount),
        Leg("cash", to_currency, result),
        Leg("conversion", to_currency, canonical(EXACT.minus(exact))),
        *((Leg("rounding", to_currency, residue),) if residue else ()),
    )


def _signed(wanted: ManualEntry) -> Decimal:
    amount = signed_amount(_needed(wanted.amount, "amount"), "amount")
    if not amount:
        raise InvalidField("amount", "must not be 0")
    return amount


def _check_currency(field: str, text: str) -> None:
    if not SYMBOL.fullmatch(text):
        raise InvalidField(field, f"must match {SYMBOL.pattern}, such as JPY")


def _needed(value: T | None, field: str) -> T:
    if value is None:
        raise InvalidField(field, "is needed for this type of entry")
    return value
