"""What accounts have open, on SQLite: bounded statements in the reader threads."""

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.claims import OPEN_ORDERS
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.tables import ORDERS, POSITIONS
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import Order
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import UnfinishedFilter

_UNFINISHED = f"""
SELECT {ORDERS.column_list} FROM ({OPEN_ORDERS})
WHERE account_id = ?1 AND order_id > ?2 AND (?3 IS NULL OR symbol = ?3) AND (?4 IS NULL OR strategy = ?4)
AND (?5 IS NULL OR venue = ?5) AND status NOT IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED')
ORDER BY order_id LIMIT ?6
"""
_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions WHERE account_id = ? AND symbol > ? AND qty <> '0' ORDER BY symbol LIMIT ?
"""


class SqliteAccounts:
    """ports.accounts.Accounts on SQLite."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """One page of the orders that have not ended, sorted by id."""
        limit = min(wanted.limit, PAGE_MAX)
        values = (wanted.account_id, wanted.after or "", wanted.symbol, wanted.strategy, wanted.venue, limit)
        return await self._connections.read(
            lambda connection: list(map(rows.order, connection.execute(_UNFINISHED, values)))
        )

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of the positions that are not flat, sorted by the bytes of their symbols."""
        values = (account_id, max(after, ACCOUNT_TOTAL), min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.position, connection.execute(_POSITIONS, values)))
        )
