"""Reads the totals that limits are checked against (`schema/programs/exposures.sql`)."""

from collections.abc import Iterable

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import Record
from switchyard.adapters.tables import POSITIONS
from switchyard.domain.positions import ACCOUNT_TOTAL
from switchyard.domain.risk.exposure import AccountExposure, Totals

SYMBOL_EXPOSURE = """
SELECT
    coalesce((SELECT qty FROM positions WHERE (account_id, symbol) = ($1, $2)), 0),
    coalesce(sum(buy_qty), 0), coalesce(sum(sell_qty), 0)
FROM exposures WHERE (account_id, symbol) = ($1, $2)
"""
ACCOUNT_TOTALS = f"""
SELECT symbol, currency, {", ".join(Totals.__struct_fields__)} FROM account_exposures($1)
"""
ACCOUNT_POSITIONS = f"""
SELECT {POSITIONS.column_list} FROM positions WHERE account_id = $1 AND symbol <> '{ACCOUNT_TOTAL}'
"""


def account_exposure(totals: Iterable[Record], positions: Iterable[Record]) -> AccountExposure:
    """An account from its rows."""
    exposure = AccountExposure()
    for symbol, currency, *amounts in totals:
        exposure.add(symbol, currency, Totals(*amounts))
    for record in positions:
        exposure.put(rows.position(record))
    return exposure
