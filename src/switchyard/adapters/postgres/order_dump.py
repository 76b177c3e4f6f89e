"""Reads every order of a PostgreSQL database on a separate connection, a page at a time."""

from collections.abc import AsyncIterator

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import single_connection
from switchyard.adapters.tables import ORDERS
from switchyard.domain.ids import OrderId
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.exposure import TotalsKey

# Rows per fetch of the cursor: well under a megabyte.
PAGE = 1_000


class PostgresOrderDump:
    """ports.rebuild.OrderDump, usable while other processes write."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def all_orders(self) -> AsyncIterator[Order]:
        """Every order of one snapshot, sorted by id."""
        sql = f"SELECT {ORDERS.column_list} FROM orders ORDER BY order_id"
        async with (
            single_connection(self._url) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            async for record in connection.cursor(sql, prefetch=PAGE):
                yield rows.order(record)

    async def wrong_totals(self) -> list[TotalsKey]:
        """The keys whose totals in `exposures` are not the sums of the open orders, in one snapshot."""
        async with single_connection(self._url) as connection:
            return [(key[0], key[1], key[2]) for key in await connection.fetch("SELECT * FROM wrong_exposures()")]

    async def wrong_unfinished(self) -> list[OrderId]:
        """Orders of which `unfinished_orders` is wrong, in one snapshot; a page at most."""
        async with single_connection(self._url) as connection:
            return [OrderId(row[0]) for row in await connection.fetch("SELECT wrong_unfinished_orders()")]
