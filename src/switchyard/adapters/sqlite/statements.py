"""The journal's SQL, but for the append itself, which is a trigger of the schema."""

from switchyard.adapters.sqlite.rows import KEY_COLUMNS, ORDER_COLUMNS, OUTBOX_COLUMNS, POSITION_COLUMNS

APPEND = """
INSERT INTO append_group (
    events, new_orders, changed_orders, new_outbox, changed_outbox, keys, positions, executions,
    cursors, group_id, outcomes, seq, hash, at, forget_before
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

LINES = """
SELECT group_concat(text || ',"hash":"' || hash || '"}' || char(10), '' ORDER BY seq), count(*), max(seq)
FROM (SELECT seq, text, hash FROM events WHERE seq > ? ORDER BY seq LIMIT ?)
"""

# CROSS JOIN keeps the order of the tables: each wanted key is looked up, never a table walked.
ORDER_VERSIONS = """
SELECT wanted.value->>0, orders.version FROM jsonb_each(?) AS wanted
CROSS JOIN orders ON orders.order_id = wanted.value->>0 OR orders.venue_client_order_id = wanted.value->>1
"""
OUTBOX_VERSIONS = """
SELECT outbox.order_id, outbox.kind, outbox.number, outbox.version FROM jsonb_each(?) AS wanted
CROSS JOIN outbox_orders AS outbox ON (outbox.order_id, outbox.kind, outbox.number)
    = (wanted.value->>0, wanted.value->>1, wanted.value->>2)
"""
POSITION_VERSIONS = """
SELECT held.account_id, held.symbol, held.version FROM jsonb_each(?) AS wanted
CROSS JOIN positions AS held ON (held.account_id, held.symbol) = (wanted.value->>0, wanted.value->>1)
"""
SEEN_EXECUTIONS = """
SELECT seen.venue, seen.exec_id FROM jsonb_each(?) AS wanted
CROSS JOIN executions AS seen ON (seen.venue, seen.exec_id) = (wanted.value->>0, wanted.value->>1)
WHERE seen.order_id <> '' OR wanted.value->>2 = ''
"""
KEY_ENTRIES = f"""
SELECT {", ".join(f"keys.{column}" for column in KEY_COLUMNS.split(", "))} FROM jsonb_each(?) AS wanted
CROSS JOIN idempotency_keys AS keys ON (keys.account_id, keys.operation, keys.idempotency_key)
    = (wanted.value->>0, wanted.value->>1, wanted.value->>2)
"""

SELECT_STATES = f"SELECT {ORDER_COLUMNS} FROM orders WHERE order_id IN (SELECT value FROM json_each(?))"
SELECT_BY_CLIENT_ID = (
    f"SELECT {ORDER_COLUMNS} FROM orders WHERE venue_client_order_id IN (SELECT value FROM json_each(?))"
)
SELECT_OUTBOX_OF = f"""
SELECT {OUTBOX_COLUMNS} FROM outbox_orders WHERE order_id IN (SELECT value FROM json_each(?))
ORDER BY order_id, kind DESC, number
"""
SELECT_POSITIONS = f"""
SELECT {", ".join(f"held.{column}" for column in POSITION_COLUMNS.split(", "))} FROM jsonb_each(?) AS wanted
CROSS JOIN positions AS held ON (held.account_id, held.symbol) = (wanted.value->>0, wanted.value->>1)
"""
