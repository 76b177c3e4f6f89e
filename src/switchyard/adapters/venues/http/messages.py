"""Our orders as messages of the HTTP venue protocol, and its answers as ours; symbols by the venue's names."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from switchyard.adapters.venues.wire import (
    REPORT_STATUS,
    AmendOrder,
    Fill,
    OrderResponse,
    PlaceOrder,
    Report,
    Reports,
    Statement,
    StatementLine,
)
from switchyard.domain.ids import AccountId, VenueClientOrderId, VenueName
from switchyard.domain.journal.lines import stamp
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reasons import bounded_detail, printable
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.reconcile.breaks import StatementFill
from switchyard.domain.values import canonical
from switchyard.ports.venue import ReportPage, StatementPage, UnreadableReport, VenueAmend, VenueFill, VenueOrder


class VenueNames:
    """The broker's names; a symbol without an entry has the same name there."""

    def __init__(
        self,
        accounts: Mapping[AccountId, str] = MappingProxyType({}),
        symbols: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        assert len(set(symbols.values())) == len(symbols), "two symbols have one name at the broker"
        self._accounts = accounts
        self._symbols = symbols
        self._ours = {theirs: ours for ours, theirs in symbols.items()}
        # Several accounts of ours may trade in one of the broker's: then its name does not tell which.
        there = list(accounts.values())
        self._accounts_here = {theirs: ours for ours, theirs in accounts.items() if there.count(theirs) == 1}

    def as_there(self, order: Order) -> Order:
        """The order with the broker's symbol, as its requests and answers have it."""
        theirs = self._symbols.get(order.symbol)
        return order if theirs is None else replace(order, symbol=theirs)

    def lacks(self, account: AccountId) -> bool:
        """Whether accounts are mapped and this one is not: its orders must not go to another one's account."""
        return bool(self._accounts) and account not in self._accounts

    def account(self, account: AccountId) -> str | None:
        """The broker's name of an account; none where accounts are not mapped."""
        return self._accounts.get(account)

    def symbol_there(self, symbol: str) -> str:
        """The broker's name of our symbol."""
        return self._symbols.get(symbol, symbol)

    def symbol_here(self, symbol: str) -> str:
        """Our name of the broker's symbol."""
        return self._ours.get(symbol, symbol)

    def account_here(self, account: str) -> AccountId | None:
        """Our account that alone has this name at the broker."""
        return self._accounts_here.get(account)


# Enough to recognise the order and the fill; a log line should not carry more.
UNREADABLE_LENGTH_MAX: Final = 2_000

_decode_report = msgspec.json.Decoder(Report).decode


def place_order(
    order: Order, expires_at: datetime | None, *, can_reduce_only: bool, account: str | None = None
) -> PlaceOrder:
    """The request that places an order.

    `can_reduce_only`: the broker has reduce-only orders; `account` is the broker's name of the order's account.
    """
    return PlaceOrder(
        idempotency_key=order.venue_client_order_id,
        client_order_id=order.venue_client_order_id,
        symbol=order.symbol,
        intent=order.side,
        qty=order.qty,
        type=order.type,
        time_in_force=order.time_in_force,
        limit_price=order.price,
        stop_price=order.stop_price,
        trace_id=order.trace_id or order.order_id,
        meta=_meta(order),
        expires_at=UNSET if expires_at is None else expires_at,
        account=UNSET if account is None else account,
        reduce_only=True if order.reduce_only and can_reduce_only else UNSET,
    )


def amend_order(amend: Amend, expires_at: datetime | None) -> AmendOrder:
    """The request that amends an order: all of its amounts, changed or not."""
    return AmendOrder(
        client_order_id=amend.client_order_id,
        qty=amend.qty,
        limit_price=amend.price,
        stop_price=amend.stop_price,
        expires_at=UNSET if expires_at is None else expires_at,
    )


def _meta(order: Order) -> dict[str, str]:
    meta = {"source": "Switchyard"}
    if order.requested_at is not None:
        meta["requested_at"] = stamp(order.requested_at)
    return meta


def venue_order(response: OrderResponse, replaced: Sequence[OrderResponse] = (), *, names: VenueNames) -> VenueOrder:
    """The order as the broker shows it; `replaced` are the orders that led to it, the oldest first."""
    legs = (*replaced, response)
    amends = [_venue_amend(leg, _client_id(leg)) for leg in legs[1:]]
    if response.amended_by is not None and response.amended_by != _client_id(response):
        amends.append(_venue_amend(response, VenueClientOrderId(response.amended_by)))
    return VenueOrder(
        venue_client_order_id=_client_id(response),
        venue_order_id=response.broker_order_id,
        status=REPORT_STATUS[response.status],
        filled_qty=canonical(response.filled_qty),
        fills=tuple(map(_venue_fill, response.fills)),
        qty=_amount(response.qty),
        price=_amount(response.limit_price),
        stop_price=_amount(response.stop_price),
        symbol=None if response.symbol is None else names.symbol_here(response.symbol),
        side=response.intent,
        accepted_at=response.accepted_at,
        amends=tuple(amends),
    )


def _client_id(response: OrderResponse) -> VenueClientOrderId:
    return VenueClientOrderId(response.client_order_id or response.idempotency_key)


def _venue_amend(leg: OrderResponse, client_id: VenueClientOrderId) -> VenueAmend:
    """The amend with this id, which gave the order its amounts."""
    return VenueAmend(
        client_order_id=client_id,
        replaces=client_id == _client_id(leg),
        qty=_amount(leg.qty),
        price=_amount(leg.limit_price),
        stop_price=_amount(leg.stop_price),
    )


def _amount(shown: Decimal | None) -> Decimal | None:
    return None if shown is None else canonical(shown)


def _venue_fill(fill: Fill) -> VenueFill:
    return VenueFill(
        exec_id=fill.exec_id,
        qty=canonical(fill.qty),
        price=canonical(fill.price),
        at=fill.at,
        fee=None if fill.fee is None else canonical(fill.fee),
        fee_currency=fill.fee_currency,
        exec_type=fill.exec_type,
        ref_exec_id=fill.ref_exec_id,
    )


def report_page(page: Reports, after: int, venue: VenueName) -> ReportPage:
    """The page that was asked for with `after`; a report that cannot be decoded does not hold up the others.

    An empty page moves the cursor only if the numbering has started again.
    """
    restarted = page.last_number < after
    reports: list[ExecutionReport] = []
    unreadable: list[UnreadableReport] = []
    for number, raw in enumerate(page.reports, page.last_number - len(page.reports) + 1):
        try:
            reports.append(_execution_report(_decode_report(raw), venue))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = bytes(raw)[:UNREADABLE_LENGTH_MAX].decode("utf-8", "replace")
            unreadable.append(UnreadableReport(number=number, text=printable(text), error=printable(str(error))))
    last_number = page.last_number if page.reports or restarted else after
    return ReportPage(reports, last_number, unreadable, restarted)


def statement_page(page: Statement, names: VenueNames) -> StatementPage:
    """The broker's fills, with our names of symbols and accounts."""
    return StatementPage([_statement_fill(line, names) for line in page.fills], page.last_number)


def _statement_fill(line: StatementLine, names: VenueNames) -> StatementFill:
    return StatementFill(
        exec_id=line.exec_id,
        venue_client_order_id=VenueClientOrderId(line.client_order_id),
        venue_order_id=line.broker_order_id,
        symbol=names.symbol_here(line.symbol),
        side=line.intent,
        qty=canonical(line.qty),
        price=canonical(line.price),
        at=line.at,
        fee=None if line.fee is None else canonical(line.fee),
        fee_currency=line.fee_currency,
        account_id=None if line.account is None else names.account_here(line.account),
        exec_type=line.exec_type,
        ref_exec_id=line.ref_exec_id,
    )


def _execution_report(report: Report, venue: VenueName) -> ExecutionReport:
    return ExecutionReport(
        exec_id=report.exec_id,
        venue=venue,
        venue_client_order_id=VenueClientOrderId(report.client_order_id),
        venue_order_id=report.broker_order_id,
        status=REPORT_STATUS[report.status],
        last_qty=canonical(report.last_qty),
        last_price=None if report.last_price is None else canonical(report.last_price),
        filled_qty_total=canonical(report.filled_qty),
        reason=bounded_detail(report.reason),
        at=report.at,
        fee=None if report.fee is None else canonical(report.fee),
        fee_currency=report.fee_currency,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
    )
