"""The journal's SQL. Rows come in as one JSON array per table, taken apart by `jsonb_each`.

`json_each` would hand each row on as text to be parsed again for every column: three times slower.
"""

from collections.abc import Sequence

from switchyard.adapters.sqlite.rows import LEDGER_COLUMNS, ORDER_COLUMNS, OUTBOX_COLUMNS
from switchyard.domain.idempotency import LedgerEntry
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow

# The encoder leaves out the decimals of a whole second; compared and sorted times need one fixed form.
_FIXED = "iif(length(value->>{0}) = 20, substr(value->>{0}, 1, 19) || '.000000Z', value->>{0})"
_COMPARED_TIMES = ("next_attempt_at", "created_at", "expires_at")


def _values(columns: Sequence[str]) -> str:
    return ", ".join(
        _FIXED.format(place) if column in _COMPARED_TIMES else f"value->>{place}"
        for place, column in enumerate(columns)
    )


def _set(columns: Sequence[str]) -> str:
    return ", ".join(f"{column} = excluded.{column}" for column in columns)


INSERT_EVENTS = """
INSERT INTO events (seq, epoch, at, type, account_id, order_id, text, hash)
SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7 FROM jsonb_each(?)
"""

# The rest of an order never changes, and its indexes stay untouched.
_ORDER_CHANGES = (
    "qty", "price", "status", "filled_qty", "filled_notional",
    "venue", "venue_order_id", "reason", "updated_at", "version",
)  # fmt: skip

_OUTBOX_CHANGES = ("status", "attempt", "next_attempt_at", "last_error", "worker", "updated_at", "version")

# A first version is inserted and nothing else, so that a unique index refuses one that is not the first.
# `WHERE true` tells the parser that ON CONFLICT belongs to the INSERT, not to a join.
INSERT_ORDERS = f"""
INSERT INTO orders ({ORDER_COLUMNS}) SELECT {_values(Order.__struct_fields__)} FROM jsonb_each(?) WHERE true
"""
UPDATE_ORDERS = f"{INSERT_ORDERS} ON CONFLICT (order_id) DO UPDATE SET {_set(_ORDER_CHANGES)}"

INSERT_OUTBOX = f"""
INSERT INTO outbox_orders ({OUTBOX_COLUMNS}) SELECT {_values(OutboxRow.__struct_fields__)} FROM jsonb_each(?) WHERE true
"""
UPDATE_OUTBOX = f"{INSERT_OUTBOX} ON CONFLICT (order_id, kind, number) DO UPDATE SET {_set(_OUTBOX_CHANGES)}"

UPSERT_LEDGER = f"""
INSERT INTO idempo_ledger ({LEDGER_COLUMNS})
SELECT {_values(LedgerEntry.__struct_fields__)} FROM jsonb_each(?) WHERE true
ON CONFLICT (account_id, operation, idempotency_key) DO UPDATE
SET {_set(("generation", "order_id", "request_digest", "created_at", "expires_at"))}
"""

INSERT_EXECUTIONS = """
INSERT INTO executions (venue, exec_id, order_id) SELECT value->>0, value->>1, value->>2 FROM jsonb_each(?)
"""

UPSERT_CURSORS = """
INSERT INTO reader_cursors (name, epoch, seq, hash)
SELECT value->>0, value->>1, value->>2, value->>3 FROM jsonb_each(?) WHERE true
ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, hash = excluded.hash
"""

INSERT_GROUP = "INSERT INTO append_groups (group_id, at, outcomes) VALUES (?, ?, ?)"
FORGET_GROUPS = "DELETE FROM append_groups WHERE at < ?"

ORDER_VERSIONS = """
SELECT wanted.value->>0, orders.version FROM jsonb_each(?) AS wanted
JOIN orders ON orders.order_id = wanted.value->>0 OR orders.venue_client_id = wanted.value->>1
"""
OUTBOX_VERSIONS = """
SELECT outbox.order_id, outbox.kind, outbox.number, outbox.version FROM jsonb_each(?) AS wanted
JOIN outbox_orders AS outbox ON (outbox.order_id, outbox.kind, outbox.number)
    = (wanted.value->>0, wanted.value->>1, wanted.value->>2)
"""
SEEN_EXECUTIONS = """
SELECT seen.venue, seen.exec_id FROM jsonb_each(?) AS wanted
JOIN executions AS seen ON (seen.venue, seen.exec_id) = (wanted.value->>0, wanted.value->>1)
"""
LEDGER_BY_KEY = f"""
SELECT {", ".join("ledger." + column for column in LedgerEntry.__struct_fields__)} FROM jsonb_each(?) AS wanted
JOIN idempo_ledger AS ledger ON (ledger.account_id, ledger.operation, ledger.idempotency_key)
    = (wanted.value->>0, wanted.value->>1, wanted.value->>2)
"""

SELECT_STATES = f"SELECT {ORDER_COLUMNS} FROM orders WHERE order_id IN (SELECT value FROM json_each(?))"
SELECT_BY_CLIENT_ID = f"SELECT {ORDER_COLUMNS} FROM orders WHERE venue_client_id IN (SELECT value FROM json_each(?))"
SELECT_OUTBOX_OF = f"""
SELECT {OUTBOX_COLUMNS} FROM outbox_orders WHERE order_id IN (SELECT value FROM json_each(?))
ORDER BY order_id, kind DESC, number
"""
