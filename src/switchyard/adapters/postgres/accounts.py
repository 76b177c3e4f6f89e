"""What accounts have open, on PostgreSQL: each query is one bounded statement."""

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.tables import ORDERS, POSITIONS
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import Order
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import UnfinishedFilter

_UNFINISHED = f"""
SELECT {ORDERS.qualified("orders")} FROM {rows.UNFINISHED}
WHERE open.account_id = $1 AND open.order_id > $2 AND ($3::text IS NULL OR orders.symbol = $3)
AND ($4::text IS NULL OR orders.strategy = $4) AND ($5::text IS NULL OR orders.venue = $5)
ORDER BY open.order_id LIMIT $6
"""
_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions
WHERE account_id = $1 AND symbol > $2 AND qty <> 0 ORDER BY symbol LIMIT $3
"""


class PostgresAccounts:
    """ports.accounts.Accounts on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """One page of the orders that have not ended, sorted by id."""
        limit = min(wanted.limit, PAGE_MAX)
        values = (wanted.account_id, wanted.after or "", wanted.symbol, wanted.strategy, wanted.venue, limit)
        return [rows.order(record) for record in await self._reader.rows(_UNFINISHED, *values)]

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of the positions that are not flat, sorted by the bytes of their symbols."""
        values = (account_id, max(after, ACCOUNT_TOTAL), min(limit, PAGE_MAX))
        return [rows.position(record) for record in await self._reader.rows(_POSITIONS, *values)]
