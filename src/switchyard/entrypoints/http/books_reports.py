"""The back office's reports, `/pnl` and `/statement`, entries by people, `/admin/ledger`, and how the books are shown.

Reads the ledger and quotes; writes entries of people.
"""

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from switchyard.bootstrap import BackOffice
from switchyard.domain.accounts.views import PositionView
from switchyard.domain.books.entries import NO_CURRENCY, LedgerEntry, parse_entry, shown
from switchyard.domain.books.holdings import Holding
from switchyard.domain.books.manual import ManualEntry, check_has_happened
from switchyard.domain.errors import InvalidField, NotFound
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.events import encode
from switchyard.domain.values import EXACT, ZERO, canonical, converted, plain
from switchyard.entrypoints.http.errors import json_response, starlette_response
from switchyard.entrypoints.http.queries import event_cursor, money_cursor, only, whole_number
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.flow.backoffice.check import Price, unrealised
from switchyard.ports.books import ENTRIES_MAX, Balance, EntryFilter, ResultsBy, StoredEntry

ENTRIES_PAGE_MAX = ENTRIES_MAX - 1
BALANCES_PAGE_MAX = 500

OwnAccount = Callable[[Request, tuple[str, ...]], AccountId]
"""The token's account, after the query's parameters were compared with the known ones."""


class ShownBalance(msgspec.Struct, kw_only=True):
    """The money of an account in one currency; all of it sums to zero."""

    currency: str
    cash: Decimal = ZERO
    trading: Decimal = ZERO
    fees: Decimal = ZERO
    capital: Decimal = ZERO
    adjustments: Decimal = ZERO
    conversion: Decimal = ZERO
    rounding: Decimal = ZERO


def shown_balances(rows: Iterable[Balance]) -> list[ShownBalance]:
    """One row per currency."""
    found: dict[str, ShownBalance] = {}
    for row in rows:
        setattr(found.setdefault(row.unit, ShownBalance(currency=row.unit)), row.account, row.amount)
    return list(found.values())


def shown_position(holding: Holding) -> PositionView:
    """A position as the gateway shows it."""
    return PositionView(
        symbol=holding.symbol,
        qty=holding.qty,
        average_price=holding.average_price,
        cost_basis=holding.cost_basis,
        realised_pnl=holding.realised_pnl,
        currency=None if holding.currency == NO_CURRENCY else holding.currency,
        updated_at=holding.updated_at,
    )


def own_account(tokens: TokenVerifier) -> OwnAccount:
    """Reads the token's account; another one in the query is not found."""

    def read(request: Request, known: tuple[str, ...]) -> AccountId:
        account = tokens.verify(authorization_header(request.scope))
        only(request.query_params, known)
        if request.query_params.get("accountId", account) != account:
            raise NotFound
        return account

    return read


LEDGER_SCOPE = "admin:ledger"
PNL_DAYS = 30
PNL_PAGE_MAX = 500
# Open positions are valued one by one; an account with more of them gets the first ones' only.
HOLDINGS_MAX = 1_000
_BY: tuple[ResultsBy, ...] = get_args(ResultsBy)
# A spreadsheet takes a cell that begins with one of these for a formula; the last four are the full-width forms.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_COLUMNS = (
    "section",
    "number",
    "entryId",
    "type",
    "at",
    "effectiveAt",
    "orderId",
    "strategy",
    "symbol",
    "side",
    "qty",
    "price",
    "account",
    "unit",
    "amount",
    "realisedPnl",
    "reason",
)


class ResultRow(msgspec.Struct, kw_only=True, rename="camel"):
    """P&L of one day, symbol or strategy in one currency."""

    name: str | None
    currency: str
    realised: Decimal = ZERO
    fees: Decimal = ZERO
    net: Decimal = ZERO
    fills: int = 0
    unrealised: Decimal | None = None
    unrealised_reason: str | None = None


class ReportRoutes:
    """The routes; each account sees its own books."""

    def __init__(self, office: BackOffice, tokens: TokenVerifier, own: OwnAccount) -> None:
        self._office = office
        self._tokens = tokens
        self._own = own
        self.routes = [
            Route("/pnl", self._show_pnl),
            Route("/statement", self._show_statement),
            Route("/admin/ledger", self._enter, methods=["POST"]),
        ]

    async def _show_pnl(self, request: Request) -> Response:
        account = self._own(request, ("accountId", "by", "from", "to", "limit", "cursor"))
        query = request.query_params
        by = _by(query.get("by", "day"))
        last = _day(query.get("to"), "to") or self._today()
        first = _day(query.get("from"), "from") or last - timedelta(days=min(PNL_DAYS - 1, (last - date.min).days))
        if first > last:
            raise InvalidField("from", "must not be after `to`")
        limit = whole_number(query, "limit", 100, 1, PNL_PAGE_MAX)
        name, currency = money_cursor(query)
        groups = await self._office.reports.results(account, by, (first, last), (name, currency), limit + 1)
        rows = {
            (group.name, group.currency): ResultRow(
                name=group.name or None,
                currency=group.currency,
                realised=group.result.strategy_realised if by == "strategy" else group.result.realised,
                fees=group.result.fees,
                fills=group.result.fills,
            )
            for group in groups
        }
        if by != "day":
            await self._add_unrealised(account, by, (name, currency), rows)
        page = [rows[key] for key in sorted(rows)][:limit]
        for row in page:
            row.net = canonical(EXACT.subtract(row.realised, row.fees))
        body = {
            "accountId": account,
            "by": by,
            "from": first,
            "to": last,
            "rows": page,
            "nextCursor": f"after:{page[-1].name or ''}:{page[-1].currency}" if len(rows) > limit else None,
        }
        return starlette_response(json_response(200, body))

    async def _add_unrealised(
        self, account: AccountId, by: ResultsBy, after: tuple[str, str], rows: dict[tuple[str, str], ResultRow]
    ) -> None:
        """Value the open positions of today; one that moved nothing in the range of days gets a row of its own."""
        for row in rows.values():
            row.unrealised = ZERO
        prices: dict[str, Price] = {}  # one of each symbol, so that the rows agree with each other
        for holding in await self._office.reports.open_holdings(account, by == "strategy", HOLDINGS_MAX):
            key = holding.strategy if by == "strategy" else holding.symbol, holding.currency
            if key <= after:
                continue
            row = rows.setdefault(key, ResultRow(name=key[0] or None, currency=key[1], unrealised=ZERO))
            if holding.symbol not in prices:
                prices[holding.symbol] = await self._office.marks.price(holding.symbol)
            price = prices[holding.symbol]
            if price.mid is None:
                row.unrealised, row.unrealised_reason = None, price.reason
            elif row.unrealised is not None:
                row.unrealised = canonical(EXACT.add(row.unrealised, unrealised(holding, price.mid)))

    async def _show_statement(self, request: Request) -> Response:
        account = self._own(request, ("accountId", "date", "format", "limit", "cursor"))
        query = request.query_params
        day = _day(query.get("date"), "date")
        if day is None:
            raise InvalidField("date", "is needed, such as 2025-03-04")
        if query.get("format", "json") == "csv":
            if "cursor" in query or "limit" in query:
                raise InvalidField("format", "csv has the whole day: leave limit and cursor out")
            name = f"statement-{day.isoformat()}.csv"
            headers = {"Content-Disposition": f'attachment; filename="{name}"'}
            return StreamingResponse(self._csv(account, day), media_type="text/csv; charset=utf-8", headers=headers)
        if query.get("format", "json") != "json":
            raise InvalidField("format", "must be json or csv")
        limit = whole_number(query, "limit", 100, 1, ENTRIES_PAGE_MAX)
        cursor = event_cursor(query, "cursor")
        if cursor is not None and not cursor.forward:
            raise InvalidField("cursor", "must be after:<number>")
        found = await self._entries(account, day, 0 if cursor is None else cursor.number, limit + 1)
        page = found[:limit]
        body = encode(
            {
                "accountId": account,
                "date": day,
                "final": day < self._today() and not self._office.is_behind,
                "opening": await self._balances(account, day - timedelta(days=1)) if day > date.min else [],
                "closing": await self._balances(account, day),
                "positions": [shown_position(holding) async for holding in self._positions(account, day)],
            }
        ).decode()
        lines = ",".join([shown(entry.text, entry.hash) for entry in page])
        following = f'"after:{page[-1].number}"' if len(found) > limit else "null"
        text = f'{body[:-1]},"entries":[{lines}],"nextCursor":{following}}}'
        return Response(text, media_type="application/json")

    async def _enter(self, request: Request) -> Response:
        by = self._tokens.subject_with(authorization_header(request.scope), LEDGER_SCOPE)
        only(request.query_params, ())
        body = parse_object(await read_body(request.receive))
        if "by" in body:
            raise InvalidField("by", "is the subject of the token: leave it out")
        wanted, now = converted({**body, "by": by}, ManualEntry), self._office.posting_clock.now()
        check_has_happened(wanted, now)
        entered = await self._office.ledger.enter(wanted, now)
        text = shown(entered.entry.text, entered.entry.hash)
        return Response(text, 200 if entered.repeated else 201, media_type="application/json")

    async def _entries(self, account: AccountId, day: date, after: int, limit: int) -> list[StoredEntry]:
        return await self._office.ledger.entries(EntryFilter(account_id=account, day=day, after=after, limit=limit))

    async def _balances(self, account: AccountId, day: date) -> list[ShownBalance]:
        found: list[ShownBalance] = []
        while True:
            after = found[-1].currency if found else ""
            page = shown_balances(await self._office.reports.closing_balances(account, day, after, BALANCES_PAGE_MAX))
            found += page
            if len(page) < BALANCES_PAGE_MAX:
                return found

    async def _positions(self, account: AccountId, day: date) -> AsyncIterator[Holding]:
        after = "", ""
        while page := await self._office.reports.closing_holdings(account, day, after, HOLDINGS_MAX):
            for holding in page:
                yield holding
            after = page[-1].symbol, page[-1].currency

    async def _csv(self, account: AccountId, day: date) -> AsyncIterator[str]:
        """The whole day: balances before it, one line for each leg, balances and positions after it."""
        yield _lines([dict.fromkeys(_COLUMNS, "") | {name: name for name in _COLUMNS}])
        if day > date.min:
            yield _lines(_balance_rows("opening", await self._balances(account, day - timedelta(days=1))))
        after = 0
        while page := await self._entries(account, day, after, ENTRIES_PAGE_MAX):
            yield _lines([row for entry in page for row in _entry_rows(parse_entry(entry.text))])
            after = page[-1].number
        yield _lines(_balance_rows("closing", await self._balances(account, day)))
        async for holding in self._positions(account, day):
            yield _lines([_position_row(holding)])

    def _today(self) -> date:
        return self._office.clock.now().astimezone(UTC).date()


def _by(text: str) -> ResultsBy:
    for known in _BY:
        if text == known:
            return known
    raise InvalidField("by", f"must be one of {', '.join(_BY)}")


def _day(text: str | None, field: str) -> date | None:
    if text is None:
        return None
    try:
        found = datetime.strptime(text, "%Y-%m-%d").date()  # noqa: DTZ007 - a day has no zone
    except ValueError:
        raise InvalidField(field, "must be a day in UTC, such as 2025-03-04") from None
    if found.isoformat() != text or found == date.max:
        raise InvalidField(field, "must be a day in UTC, such as 2025-03-04")
    return found


def _balance_rows(section: str, balances: list[ShownBalance]) -> list[dict[str, Any]]:
    return [
        {"section": section, "account": name, "unit": balance.currency, "amount": plain(amount)}
        for balance in balances
        for name, amount in msgspec.structs.asdict(balance).items()
        if name != "currency" and amount
    ]


def _entry_rows(entry: LedgerEntry) -> list[dict[str, Any]]:
    row = {
        "section": "entry",
        "number": str(entry.number),
        "entryId": entry.entry_id,
        "type": entry.type,
        "at": entry.at.isoformat(),
        "effectiveAt": "" if entry.effective_at is None else entry.effective_at.isoformat(),
        "orderId": entry.order_id,
        "strategy": entry.strategy or "",
        "symbol": entry.symbol,
        "side": entry.side or "",
        "qty": "" if entry.qty is None else plain(entry.qty),
        "price": "" if entry.price is None else plain(entry.price),
        "realisedPnl": plain(entry.realised_pnl) if entry.realised_pnl else "",
        "reason": entry.reason or entry.reason_code or "",
    }
    if not entry.legs:
        return [row]
    return [{**row, "account": leg.account, "unit": leg.unit, "amount": plain(leg.amount)} for leg in entry.legs]


def _position_row(holding: Holding) -> dict[str, Any]:
    average = holding.average_price
    return {
        "section": "position",
        "symbol": holding.symbol,
        "qty": plain(holding.qty),
        "price": "" if average is None else plain(average),
        "unit": holding.currency,
        "amount": plain(holding.cost_basis),
        "realisedPnl": plain(holding.realised_pnl),
    }


def _lines(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\r\n")
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _cell(value: str) -> str:
    """The text, quoted where a spreadsheet would take it for a formula; a number stays one."""
    if not value.startswith(_FORMULA):
        return value
    return value if value[1:].replace(".", "", 1).isdigit() else f"'{value}"
