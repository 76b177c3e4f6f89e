"""Reads the totals that limits are checked against (`schema/programs/exposures.sql`)."""

import asyncio
from collections.abc import Iterable
from itertools import islice

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import Record
from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.tables import POSITIONS
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.ids import AccountId
from switchyard.domain.risk.claims import WINDOW_ORDERS_MAX
from switchyard.domain.risk.exposure import FLAT, AccountExposure, SymbolExposure, Totals

_SYMBOLS = """
SELECT held.account_id, held.symbol, held.qty, coalesce(open.buys, 0), coalesce(open.sells, 0)
FROM unnest($1::text[], $2::text[]) AS requested (account_id, symbol)
CROSS JOIN LATERAL (
    SELECT stored.account_id, stored.symbol, stored.qty FROM positions AS stored
    WHERE (stored.account_id, stored.symbol) = (requested.account_id, requested.symbol) AND stored.qty <> 0 LIMIT 1
) AS held
LEFT JOIN LATERAL (
    SELECT sum(buy_qty) AS buys, sum(sell_qty) AS sells FROM exposures AS stored
    WHERE (stored.account_id, stored.symbol) = (requested.account_id, requested.symbol)
) AS open ON true
"""
ACCOUNT_TOTALS = f"""
SELECT symbol, currency, {", ".join(Totals.__struct_fields__)} FROM account_exposures($1)
"""
ACCOUNT_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions WHERE account_id = $1 AND symbol <> '{ACCOUNT_TOTAL}'
"""
RESERVED = """
SELECT currency, sum(open_orders)::bigint, sum(notional) FROM exposures
WHERE open_orders <> 0 AND (SELECT bool_or(keeps_exposures) FROM journal_heads) GROUP BY currency
"""
WINDOW_ORDERS = f"""
SELECT count(*) FROM (
    SELECT FROM orders WHERE account_id = $1 AND order_id >= $2 AND NOT (version = 1 AND status = 'REJECTED')
    LIMIT {WINDOW_ORDERS_MAX}
) AS page
"""


# Under load several orders of an account and symbol share a read; a single order makes its own.
SHARED_SECONDS = 0.1
# Answers that are kept to be shared; beyond it all are forgotten.
SHARED_MAX = 10_000
READ_AHEAD_MAX = 256


class SymbolReads:
    """Coalesces reads into one query at a time: with a limit, every new order makes one.

    They only help to guess whether an order is reducing. The append checks the guess.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._waiting: dict[tuple[AccountId, str], asyncio.Future[SymbolExposure]] = {}
        self._shared: dict[tuple[AccountId, str], tuple[float, SymbolExposure]] = {}
        self._used: set[tuple[AccountId, str]] = set()
        """Those that were shared since they were read: the next query reads them too."""
        self._task: asyncio.Task[None] | None = None

    async def read(self, account: AccountId, symbol: str, *, fresh: bool) -> SymbolExposure:
        """One account in one symbol; if fresh, as of a moment after this call."""
        key = (account, symbol)
        if not fresh and (known := self._shared.get(key)) is not None:
            read_at, exposure = known
            if asyncio.get_running_loop().time() - read_at < SHARED_SECONDS:
                self._used.add(key)
                return exposure
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._task is None:
                self._task = asyncio.create_task(self._run())
        return await asyncio.shield(future)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                await self._answer(batch)
        finally:
            self._task = None

    async def _answer(self, batch: dict[tuple[AccountId, str], "asyncio.Future[SymbolExposure]"]) -> None:
        asked_at = asyncio.get_running_loop().time()
        keys = [*batch, *islice(self._used - batch.keys(), READ_AHEAD_MAX)]
        self._used.clear()
        accounts, symbols = [account for account, _ in keys], [symbol for _, symbol in keys]
        try:
            records = await self._reader.unconfirmed_rows(_SYMBOLS, accounts, symbols)
        except BaseException as error:
            for future in batch.values():
                if isinstance(error, Exception):
                    future.set_exception(error)
                    future.exception()  # its callers may have been cancelled
                else:
                    future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        if len(self._shared) > SHARED_MAX:
            self._shared.clear()
        held = {(account, symbol): SymbolExposure(*amounts) for account, symbol, *amounts in records}
        for key in keys:
            self._shared[key] = asked_at, held.get(key, FLAT)
        for key, future in batch.items():
            future.set_result(held.get(key, FLAT))


def account_exposure(totals: Iterable[Record], positions: Iterable[Record]) -> AccountExposure:
    """An account from its rows."""
    exposure = AccountExposure()
    for symbol, currency, *amounts in totals:
        exposure.add(symbol, currency, Totals(*amounts))
    for record in positions:
        exposure.put(rows.position(record))
    return exposure
