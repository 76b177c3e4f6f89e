"""The journal's SQL statements on SQLite, except the append itself (`append.py`)."""

from switchyard.adapters.tables import IDEMPOTENCY_KEYS, KILLS, ORDERS, OUTBOX_ORDERS, POSITIONS

LINES = """
SELECT group_concat(text || ',"hash":"' || hash || '"}' || char(10), '' ORDER BY seq), count(*), max(seq)
FROM (SELECT seq, text, hash FROM journal WHERE seq > ? ORDER BY seq LIMIT ?)
"""

# CROSS JOIN fixes the join order: one index lookup for each requested key, never a scan of the table.
ORDER_VERSIONS = """
SELECT orders.order_id, orders.version FROM jsonb_each(?) AS requested
CROSS JOIN orders ON orders.order_id = requested.value
"""
OUTBOX_VERSIONS = """
SELECT outbox.order_id, outbox.kind, outbox.number, outbox.version FROM jsonb_each(?) AS requested
CROSS JOIN outbox_orders AS outbox ON (outbox.order_id, outbox.kind, outbox.number)
    = (requested.value->>0, requested.value->>1, requested.value->>2)
"""
POSITION_VERSIONS = """
SELECT stored.account_id, stored.symbol, stored.version FROM jsonb_each(?) AS requested
CROSS JOIN positions AS stored ON (stored.account_id, stored.symbol) = (requested.value->>0, requested.value->>1)
"""
LANES_WITH_QUEUE = """
SELECT value FROM json_each(?) WHERE EXISTS (
    SELECT 1 FROM outbox_orders WHERE lane = value AND status IN ('queued', 'failed') AND kind = 'new'
)
"""
SEEN_EXECUTIONS = """
SELECT stored.venue, stored.exec_id FROM jsonb_each(?) AS requested
CROSS JOIN executions AS stored ON (stored.venue, stored.exec_id) = (requested.value->>0, requested.value->>1)
WHERE stored.order_id <> '' OR stored.stray_client_order_id IS NULL OR stored.stray_client_order_id NOT IN (
    SELECT venue_client_order_id FROM orders WHERE order_id = requested.value->>2
    UNION ALL
    SELECT venue_client_order_id FROM outbox_orders WHERE order_id = requested.value->>2 AND kind = 'amend'
)
"""
KEY_ENTRIES = f"""
SELECT {IDEMPOTENCY_KEYS.qualified("stored")} FROM jsonb_each(?) AS requested
CROSS JOIN idempotency_keys AS stored ON (stored.account_id, stored.operation, stored.idempotency_key)
    = (requested.value->>0, requested.value->>1, requested.value->>2)
"""

SELECT_STATES = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id IN (SELECT value FROM json_each(?))"
SELECT_BY_CLIENT_ID = f"""
SELECT {ORDERS.column_list} FROM orders WHERE venue_client_order_id IN (SELECT value FROM json_each(?))
"""
SELECT_BY_AMEND_ID = f"""
SELECT {ORDERS.qualified("orders")} FROM json_each(?) AS requested
CROSS JOIN outbox_orders AS amend ON amend.venue_client_order_id = requested.value AND amend.kind = 'amend'
CROSS JOIN orders ON orders.order_id = amend.order_id
"""
SELECT_OUTBOX_OF = f"""
SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE order_id IN (SELECT value FROM json_each(?))
ORDER BY order_id, kind DESC, number
"""
SELECT_POSITIONS = f"""
SELECT {POSITIONS.qualified("stored")} FROM jsonb_each(?) AS requested
CROSS JOIN positions AS stored ON (stored.account_id, stored.symbol) = (requested.value->>0, requested.value->>1)
"""
ACTIVE_KILLS = f"SELECT {KILLS.column_list} FROM kills INDEXED BY kills_active WHERE cleared_at IS NULL"
KILL_VERSION = "SELECT version FROM kills WHERE kill_id = ?"
