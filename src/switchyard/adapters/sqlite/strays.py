"""Which client order ids a venue has reported on before their orders existed here. Reads only."""

from collections.abc import Iterable

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.domain.ids import VenueClientOrderId, last_generation

_ANY_STRAY = "SELECT 1 FROM executions WHERE stray_client_order_id IS NOT NULL LIMIT 1"
_STRAYS = """
SELECT value->>0 FROM json_each(?)
WHERE EXISTS (SELECT 1 FROM executions WHERE stray_client_order_id BETWEEN value->>0 AND value->>1)
"""


def reported_before(connection: apsw.Connection, ids: Iterable[VenueClientOrderId]) -> set[str]:
    """Those of the ids that a report without an order names, or names with a later generation of the same key."""
    if connection.execute(_ANY_STRAY).fetchone() is None:
        return set()
    ranges = rows.json_array([(client_id, last_generation(client_id)) for client_id in ids])
    return {client_id for (client_id,) in connection.execute(_STRAYS, (ranges,))}
