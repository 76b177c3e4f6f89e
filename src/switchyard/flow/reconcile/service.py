"""What people do about breaks: look, explain, adopt a foreign fill, and compare now.

Reads and writes breaks; an adoption also writes one entry of the ledger.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.books.entries import NO_CURRENCY
from switchyard.domain.books.holdings import Holding
from switchyard.domain.books.manual import ManualEntry, manual_entry
from switchyard.domain.errors import InvalidField, NotFound
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.reconcile.breaks import (
    CURRENT_STATES,
    Break,
    BreakChanged,
    BreakHistory,
    BreakPage,
    NotCompared,
    PassView,
    ReconciledBalance,
    ReconciledPosition,
    ReconcileView,
    StatementFill,
    adopted,
    check_decision,
    explained,
    shown,
)
from switchyard.domain.reconcile.matching import gateway_scope, ledger_scope
from switchyard.domain.values import EXACT, ONE, ROUNDED, ZERO, canonical, fixed
from switchyard.flow.reconcile.reconciler import Reconciler
from switchyard.ports.books import Balance, BreakFilter, BreakStore, Ledger, ManualLedger
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Queries
from switchyard.ports.quotes import QuoteLookup

HISTORY_MAX: Final = 100
ROWS_MAX: Final = 1_000
PAGE: Final = 500


class ReconcileService:
    """Reconciliation for people; `reconciler` is none where the setting switches it off."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        manual: ManualLedger,
        queries: Queries,
        breaks: BreakStore,
        clock: Clock,
        catalogue: Catalogue,
        quotes: QuoteLookup | None,
        venues: tuple[VenueName, ...],
        reconciler: Reconciler | None,
    ) -> None:
        self._ledger = ledger
        self._manual = manual
        self._queries = queries
        self._breaks = breaks
        self._clock = clock
        self._catalogue = catalogue
        self._quotes = quotes
        self._venues = venues
        self.reconciler = reconciler

    async def compare(self, *, full: bool) -> PassView:
        """Make a pass now; raises BreakChanged where reconciliation is off."""
        if self.reconciler is None:
            raise BreakChanged("SWITCHYARD_RECONCILE is false: this process compares nothing")
        return await self.reconciler.run_once(full=full)

    async def page(self, wanted: BreakFilter) -> BreakPage:
        """A page of breaks."""
        limit = wanted.limit
        found = await self._breaks.page(
            BreakFilter(states=wanted.states, account_id=wanted.account_id, after=wanted.after, limit=limit + 1)
        )
        page = found[:limit]
        return BreakPage(breaks=tuple(map(shown, page)), next_cursor=page[-1].break_id if len(found) > limit else None)

    async def show(self, break_id: str) -> BreakHistory:
        """A break and its newest versions."""
        one = await self._find(break_id)
        history = await self._breaks.history(break_id, HISTORY_MAX)
        return BreakHistory(break_=shown(one), history=tuple(map(shown, history)))

    async def explain(self, break_id: str, by: str, reason: str) -> BreakHistory:
        """Record why the difference is as it should be."""
        one = await self._find(break_id)
        await self._save(explained(one, by, reason, self._clock.now()))
        return await self.show(break_id)

    async def adopt(self, break_id: str, account: AccountId | None, by: str, reason: str) -> BreakHistory:
        """Book a foreign fill to the strategy `external`; the next pass closes its break."""
        one = await self._find(break_id)
        check_decision(by, reason)
        if one.fill is None or one.order_id is not None or one.class_ != "missing_here":
            raise BreakChanged(f"{break_id} is no fill of an order that is unknown here: only that can be adopted")
        account = one.account_id or account
        if account is None:
            raise InvalidField("accountId", "required: the venue does not name the account of this fill")
        now = self._clock.now()
        after = adopted(one, account, by, reason, now)
        if one.adopted_account not in (None, account):
            raise BreakChanged(f"{break_id} was adopted for the account {one.adopted_account}: it is booked once only")
        if one.adopted_account is not None:  # finish that adoption, under the name and reason that were recorded
            by, reason = one.by or by, one.reason or reason
        wanted = self._entry(one, one.fill, account, by, reason)
        manual_entry(wanted, seq=0, at=now)  # raises InvalidField before the account is recorded
        # The account first, so that two people cannot book one fill to two accounts. After a crash between the two, a
        # repeat books the entry.
        if one.adopted_account is None:
            await self._save(after)
        await self._manual.enter(wanted, now)
        return await self.show(break_id)

    def _entry(self, one: Break, fill: StatementFill, account: AccountId, by: str, reason: str) -> ManualEntry:
        assert one.venue is not None, "a fill has a venue"
        exec_id = None if self.reconciler is None else self.reconciler.recorded_id(one.venue, fill)
        if exec_id is None:
            raise BreakChanged(f"{one.venue} is not compared by this process: adopt the fill where it is")
        instrument = self._catalogue.find(fill.symbol)
        return ManualEntry(
            type="Fill",
            account_id=account,
            key=f"adopt-{one.break_id}",
            by=by,
            reason=reason,
            currency=instrument.settlement or NO_CURRENCY,
            multiplier=instrument.multiplier,
            symbol=fill.symbol,
            side=fill.side,
            qty=fill.qty,
            price=fill.price,
            venue=one.venue,
            exec_id=exec_id,
            fee=fill.fee,
            fee_currency=fill.fee_currency,
            effective_at=fill.at,
        )

    async def account(self, account: AccountId, quote_ccy: str, limit: int) -> ReconcileView:
        """One account's books, valued where rates are known, with its breaks."""
        limit = min(limit, ROWS_MAX)
        rows = await self._ledger.balances(account, "", limit + 1)
        holdings = await self._ledger.holdings(account, "", "", limit + 1)
        rates = await self._rates(quote_ccy, {row.unit for row in rows}, holdings[:limit])
        balances = _balances(rows, rates)
        gateway = await self._gateway_positions(account, limit)
        positions: dict[str, ReconciledPosition] = {}
        for one in holdings[:limit]:
            # A symbol whose settlement currency was changed has a position in each.
            key = one.symbol if one.symbol not in positions else f"{one.symbol}:{one.currency}"
            positions[key] = _position(one, gateway, rates)
        for symbol in sorted(gateway.keys() - positions.keys()):
            if len(positions) < limit and gateway[symbol]:
                positions[symbol] = ReconciledPosition(gateway_qty=gateway[symbol])
        breaks = await self._breaks.page(BreakFilter(states=CURRENT_STATES, account_id=account, limit=limit))
        last = None if self.reconciler is None else self.reconciler.last
        unvalued = [name for name, one in balances.items() if one.cash_in_quote_ccy is None]
        unvalued += [name for name, held in positions.items() if held.value_in_quote_ccy is None]
        return ReconcileView(
            account_id=account,
            quote_ccy=quote_ccy,
            balances=dict(list(balances.items())[:limit]),
            positions=positions,
            unvalued=tuple(unvalued),
            breaks=tuple(map(shown, breaks)),
            truncated=max(len(balances), len(holdings), len(gateway)) > limit or len(breaks) == limit,
            compared_at=None if last is None else last.compared_at,
            not_compared=self._not_compared(account),
        )

    async def _gateway_positions(self, account: AccountId, limit: int) -> dict[str, Decimal]:
        """The gateway's quantities by symbol, more than `limit` where there are more."""
        found: dict[str, Decimal] = {}
        after = ACCOUNT_TOTAL
        while len(found) <= limit and (page := await self._queries.positions(account, after=after, limit=PAGE)):
            found |= {row.symbol: row.qty for row in page}
            after = page[-1].symbol
        return found

    def _not_compared(self, account: AccountId) -> tuple[NotCompared, ...]:
        """What concerns the account; other accounts are not named."""
        if self.reconciler is None:
            return (NotCompared("all", "SWITCHYARD_RECONCILE is false"),)
        if self.reconciler.last is None:
            return (NotCompared("all", "the first pass has not ended"),)
        own = gateway_scope(account), ledger_scope(account)
        # The answer of a venue may name addresses, which are the operator's business.
        return tuple(
            one if one.scope in own else NotCompared(one.scope, "the venue could not be asked")
            for one in self.reconciler.last.not_compared
            if one.scope in own or not one.scope.startswith(("gateway:", "ledger:"))
        )

    async def _rates(self, quote_ccy: str, currencies: Iterable[str], holdings: Sequence[Holding]) -> "_Rates":
        """The mid prices that value these currencies and positions, in one look at the quotes."""
        pairs = {
            currency: pair
            for currency in {*currencies, *(one.currency for one in holdings)}
            if (pair := self._pair(currency, quote_ccy)) is not None
        }
        symbols = sorted({*pairs.values(), *(one.symbol for one in holdings)})
        if self._quotes is None or not symbols:
            return _Rates(quote_ccy, pairs, {})
        wanted = [(venue, symbol) for symbol in symbols for venue in self._venues]
        mids: dict[str, Decimal] = {}
        for (_, symbol), quote in zip(wanted, await self._quotes.look_up(wanted), strict=True):
            if quote is not None and symbol not in mids:
                mids[symbol] = ROUNDED.divide(EXACT.add(quote.bid, quote.ask), Decimal(2))
        return _Rates(quote_ccy, pairs, mids)

    def _pair(self, currency: str, quote_ccy: str) -> str | None:
        """The pair of the two currencies that the catalogue has."""
        return next(
            (pair for pair in (currency + quote_ccy, quote_ccy + currency) if self._catalogue.listed(pair) is not None),
            None,
        )

    async def _find(self, break_id: str) -> Break:
        found = (await self._breaks.find([break_id])).get(break_id)
        if found is None:
            raise NotFound
        return found

    async def _save(self, one: Break) -> None:
        if not await self._breaks.save([one]):
            raise BreakChanged(f"{one.break_id} was changed meanwhile: look at it again")


class _Rates:
    """What currencies and symbols are worth in one currency."""

    def __init__(self, quote_ccy: str, pairs: Mapping[str, str], mids: Mapping[str, Decimal]) -> None:
        self._quote_ccy = quote_ccy
        self._pairs = pairs
        self.mids = mids

    def of(self, currency: str) -> Decimal | None:
        """How much a unit of the currency is worth; None without a quote of a pair of the two."""
        if currency == self._quote_ccy:
            return ONE
        pair = self._pairs.get(currency)
        mid = None if pair is None else self.mids.get(pair)
        if mid is None or pair == currency + self._quote_ccy:
            return mid
        return ROUNDED.divide(ONE, mid)


def _balances(rows: Sequence[Balance], rates: _Rates) -> dict[str, ReconciledBalance]:
    found: dict[str, ReconciledBalance] = {}
    for row in rows:
        balance = found.setdefault(row.unit, ReconciledBalance())
        setattr(balance, row.account, row.amount)
    for currency, balance in found.items():
        rate = rates.of(currency)
        balance.cash_in_quote_ccy = None if rate is None else _rounded(balance.cash, rate)
    return found


def _position(holding: Holding, gateway: Mapping[str, Decimal], rates: _Rates) -> ReconciledPosition:
    mark, rate = rates.mids.get(holding.symbol), rates.of(holding.currency)
    value = None
    if not holding.qty:
        value = ZERO
    elif mark is not None and rate is not None:
        value = _rounded(EXACT.multiply(holding.qty, holding.multiplier), ROUNDED.multiply(mark, rate))
    return ReconciledPosition(
        qty=holding.qty,
        gateway_qty=gateway.get(holding.symbol, ZERO),
        currency=None if holding.currency == NO_CURRENCY else holding.currency,
        cost_basis=holding.cost_basis,
        realised_pnl=holding.realised_pnl,
        value_in_quote_ccy=value,
    )


def _rounded(amount: Decimal, rate: Decimal) -> Decimal:
    return canonical(Decimal(fixed(ROUNDED.multiply(amount, rate))))
