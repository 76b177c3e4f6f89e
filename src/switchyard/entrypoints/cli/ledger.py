"""`ledger`: entries by people, such as deposits and corrections, and the entries that the journal has lost."""

import asyncio
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, get_args

import msgspec
import typer

from switchyard.domain.books.manual import ManualEntry, ManualType
from switchyard.domain.errors import InvalidField
from switchyard.domain.values import converted
from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.processes import configured

app = typer.Typer(help="Book entries by hand, such as deposits and adjustments.", no_args_is_help=True)

_WORDS: dict[str, ManualType] = {
    "".join(f"-{each.lower()}" if each.isupper() else each for each in name).lstrip("-"): name
    for name in get_args(ManualType)
    if name != "Reversal"
}
AccountOption = Annotated[str, typer.Option("--account", help="The account.")]
KeyOption = Annotated[
    str, typer.Option("--key", help="Makes a repeat harmless: the same key books once, other content is an error.")
]
ByOption = Annotated[str, typer.Option("--by", help="Your name; it is recorded.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is recorded.")]


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="ledger")


@app.command()
def post(
    kind: Annotated[str, typer.Argument(metavar="TYPE", help=f"One of {', '.join(_WORDS)}.")],
    account: AccountOption,
    key: KeyOption,
    by: ByOption,
    reason: ReasonOption,
    currency: Annotated[str, typer.Option("--currency", help="The currency of the amounts, such as JPY.")],
    amount: Annotated[
        str | None, typer.Option("--amount", help="Below zero is allowed for an adjustment, a fee or a balance.")
    ] = None,
    to_currency: Annotated[str | None, typer.Option("--to-currency", help="Conversion: the other currency.")] = None,
    to_amount: Annotated[str | None, typer.Option("--to-amount", help="Conversion: what came out of it.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="Conversion: units of the other currency for one of this.")
    ] = None,
    decimals: Annotated[
        int | None, typer.Option("--decimals", help="Conversion with a rate: decimals of the result.")
    ] = None,
    symbol: Annotated[str | None, typer.Option("--symbol", help="Position or fill: the instrument.")] = None,
    side: Annotated[str | None, typer.Option("--side", help="Position or fill: BUY or SELL.")] = None,
    qty: Annotated[str | None, typer.Option("--qty", help="Position or fill: the quantity.")] = None,
    price: Annotated[str | None, typer.Option("--price", help="Position or fill: the price per unit.")] = None,
    multiplier: Annotated[str, typer.Option("--multiplier", help="Position or fill: of the instrument.")] = "1",
    strategy: Annotated[str | None, typer.Option("--strategy", help="The strategy; `external` for a fill.")] = None,
    venue: Annotated[str | None, typer.Option("--venue", help="Fill: where it was executed.")] = None,
    exec_id: Annotated[str | None, typer.Option("--exec-id", help="Fill: the venue's execution id.")] = None,
    fee: Annotated[str | None, typer.Option("--fee", help="Fill: its fee.")] = None,
    effective_at: Annotated[
        str | None, typer.Option("--effective-at", help="When it happened, such as 2025-03-04T09:30:00Z.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Book an entry by hand. On SQLite stop `switchyard up` first, or use its POST /admin/ledger."""
    if kind not in _WORDS:
        raise InvalidField("TYPE", f"must be one of {', '.join(_WORDS)}")
    fields = {
        "type": _WORDS[kind],
        "accountId": account,
        "key": key,
        "by": by,
        "reason": reason,
        "currency": currency,
        "amount": _number("--amount", amount),
        "toCurrency": to_currency,
        "toAmount": _number("--to-amount", to_amount),
        "rate": _number("--rate", rate),
        "decimals": decimals,
        "symbol": symbol,
        "side": side,
        "qty": _number("--qty", qty),
        "price": _number("--price", price),
        "multiplier": _number("--multiplier", multiplier),
        "strategy": strategy,
        "venue": venue,
        "execId": exec_id,
        "fee": _number("--fee", fee),
        "effectiveAt": _time(effective_at),
    }
    _enter(converted({name: value for name, value in fields.items() if value is not None}, ManualEntry), json)


@app.command()
def reverse(
    entry_id: Annotated[str, typer.Argument(metavar="ENTRY_ID", help="The entry to take back.")],
    account: AccountOption,
    key: KeyOption,
    by: ByOption,
    reason: ReasonOption,
    json: JsonOption = False,
) -> None:
    """Take an entry back by a new one with the opposite legs; the entry itself stays."""
    fields = {
        "type": "Reversal",
        "accountId": account,
        "key": key,
        "by": by,
        "reason": reason,
        "reverses": entry_id,
    }
    _enter(converted(fields, ManualEntry), json)


@app.command()
def orphans(json: JsonOption = False) -> None:
    """List the first entries that an adopted journal does not have, at most 1000."""
    from switchyard.bootstrap import orphans_of_books

    for line in asyncio.run(orphans_of_books(configured({}))):
        entry = msgspec.json.decode(line)
        if json:
            typer.echo(line)
        else:
            typer.echo(f"{entry['accountId']} {entry['number']} {entry['entryId']} {entry['type']} {entry['at']}")


def _enter(wanted: ManualEntry, json: bool) -> None:
    from switchyard.bootstrap import enter_in_books

    entered = asyncio.run(enter_in_books(configured({}), wanted))
    if json:
        typer.echo(entered.line)
        return
    entry = msgspec.json.decode(entered.line)
    before = " (it was there before)" if entered.repeated else ""
    typer.echo(f"entry {entry['number']} of account {entry['accountId']}: {entry['entryId']}{before}")


def _number(name: str, text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        raise InvalidField(name, f"must be a number, not {text!r}") from None


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidField("--effective-at", "must be a time such as 2025-03-04T09:30:00Z") from None
