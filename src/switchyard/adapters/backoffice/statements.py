"""The statements of the books: those that are equal on both engines, and those made of the parts of a dialect."""

from collections.abc import Sequence

from switchyard.adapters.backoffice.session import Dialect

ACCOUNT_COLUMNS = "account_id, entries, hash, reached_at, epoch, seq, halted_seq, halted"
ENTRY_COLUMNS = (
    "account_id, number, entry_id, type, order_id, symbol, strategy, entered_by, seq, at, reached_at, text, hash"
)
RESULT_COLUMNS = "account_id, day, symbol, currency, strategy, realised, strategy_realised, fees, fills"

CLAIM = """
INSERT INTO sources (source, position, generation) VALUES ($1, $2, 1)
ON CONFLICT (source) DO UPDATE SET generation = sources.generation + 1 RETURNING position, generation
"""
RESET = """
INSERT INTO sources (source, position, generation) VALUES ($1, $2, 1)
ON CONFLICT (source) DO UPDATE SET generation = sources.generation + 1, position = excluded.position
"""
SOURCES = "SELECT source, position, generation, read_at FROM sources ORDER BY source"
MOVE = "UPDATE sources SET position = $2, read_at = coalesce($3, read_at) WHERE source = $1"
COUNT = "SELECT coalesce(sum(entries), 0) FROM accounts"
HALTED = """
SELECT account_id, halted_seq, halted FROM accounts WHERE halted_seq IS NOT NULL ORDER BY account_id LIMIT $1
"""
ACCOUNT = f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE account_id = $1"
REVERSAL_OF = "SELECT replacement_id FROM reversals WHERE entry_id = $1"
STORED_OF = "SELECT number, text, hash FROM entries WHERE entry_id = $1"
UNREVERSED = """
SELECT text FROM entries
WHERE account_id = $1 AND symbol = $2 AND type IN ('Fill', 'OpeningPosition')
    AND NOT EXISTS (SELECT 1 FROM reversals WHERE reversals.entry_id = entries.entry_id)
ORDER BY number
"""
ADOPTIONS = "SELECT epoch, after_seq, first_seq, by, reason, at FROM adoptions ORDER BY epoch"
ADD_ADOPTION = "INSERT INTO adoptions (epoch, after_seq, first_seq, by, reason, at) VALUES ($1, $2, $3, $4, $5, $6)"
ADD_ORPHANS = """
INSERT INTO orphans (account_id, number, entry_id)
SELECT account_id, number, entry_id FROM entries WHERE seq > $1 AND seq < $2 AND entered_by IS NULL
ON CONFLICT DO NOTHING RETURNING 1
"""
ADD_ORPHAN = "INSERT INTO orphans (account_id, number, entry_id) VALUES ($1, $2, $3)"
ORPHANS = """
SELECT entries.number, entries.text, entries.hash FROM orphans JOIN entries USING (account_id, number)
WHERE (orphans.account_id, orphans.number) > ($1, $2) AND NOT confirmed
ORDER BY orphans.account_id, orphans.number LIMIT $3
"""
POSITIONS_OF = """
SELECT body FROM positions
WHERE account_id = $1 AND strategy = '*' AND (symbol, currency) > ($2, $3) AND ($4 OR NOT is_flat)
ORDER BY symbol, currency LIMIT $5
"""
BALANCES_OF = """
SELECT account, unit, amount FROM balances
WHERE account_id = $1 AND account NOT IN ('position', 'position_clearing') AND unit IN (
    SELECT DISTINCT unit FROM balances
    WHERE account_id = $1 AND unit > $2 AND account NOT IN ('position', 'position_clearing') ORDER BY unit LIMIT $3
)
ORDER BY unit, account
"""
ENTRIES_OF_STRATEGY = """
SELECT number, text, hash FROM entries
WHERE account_id = $1 AND strategy = $2 AND (at, number) > ($3, $4) ORDER BY at, number LIMIT $5
"""
OPEN_POSITIONS = """
SELECT body FROM positions WHERE account_id = $1 AND (strategy = '*') <> $2 AND NOT is_flat
ORDER BY strategy, symbol, currency LIMIT $3
"""


class Statements:
    """The statements of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        first = dialect.any_of.format("$1")
        waits_for = f"{dialect.json.format('text')} ->> 'waitsFor'"
        waiting = dialect.hint.format("entries_waiting")

        # Locked to the end of the transaction: a claim waits for the page, and the page for the claim.
        self.source = f"SELECT position, generation FROM sources WHERE source = $1 {dialect.lock}"
        # In one order for every writer, so that two of them never wait for each other.
        self.find_accounts = f"""
        SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE account_id {first} ORDER BY account_id {dialect.lock}
        """
        self.find_orders = f"SELECT body FROM orders WHERE order_id {first}"
        self.find_entry_ids = f"SELECT entry_id FROM entries WHERE entry_id {first}"
        self.find_waited_for = f"""
        SELECT entries.account_id, exec_id FROM {_wanted(dialect, "account_id", "exec_id")}
        CROSS JOIN entries {waiting}
        WHERE entries.account_id = wanted.account_id AND {waits_for} = exec_id AND type = 'RevisionNoted'
        """
        self.waiting = f"""
        SELECT text FROM entries {waiting}
        WHERE account_id = $1 AND {waits_for} = $2 AND type = 'RevisionNoted' ORDER BY number
        """
        self.find_positions = _rows_of_keys(
            dialect, "body", "positions", ("account_id", "strategy", "symbol", "currency")
        )
        self.find_balances = _rows_of_keys(
            dialect,
            "balances.account_id, balances.account, balances.unit, amount",
            "balances",
            ("account_id", "account", "unit"),
        )
        self.stored_of_key = f"""
        SELECT number, text, hash FROM entries
        WHERE account_id = $1 AND {dialect.json.format("text")} ->> 'key' = $2 AND entered_by IS NOT NULL
        """
        self.add_entries = _insert(dialect, "entries", ENTRY_COLUMNS)
        self.add_legs = _insert(dialect, "legs", "account_id, number, leg, account, unit, amount")
        self.set_accounts = _upsert(dialect, "accounts", ACCOUNT_COLUMNS, "account_id")
        self.set_orders = _upsert(dialect, "orders", "order_id, body", "order_id")
        self.set_positions = _upsert(
            dialect,
            "positions",
            "account_id, strategy, symbol, currency, is_flat, body",
            "account_id, strategy, symbol, currency",
        )
        self.set_balances = _upsert(
            dialect, "balances", "account_id, account, unit, amount", "account_id, unit, account"
        )
        self.set_day_positions = _upsert(
            dialect, "day_positions", "account_id, symbol, currency, day, body", "account_id, symbol, currency, day"
        )
        self.set_day_balances = _upsert(
            dialect, "day_balances", "account_id, account, unit, day, amount", "account_id, unit, account, day"
        )
        sums = ", ".join(
            f"{name} = {dialect.sum.format(f'results.{name}', f'excluded.{name}')}"
            for name in ("realised", "strategy_realised", "fees")
        )
        self.add_results = f"""
        {_insert(dialect, "results", RESULT_COLUMNS)}
        ON CONFLICT (account_id, day, symbol, currency, strategy) DO UPDATE SET
            {sums}, fills = results.fills + excluded.fills
        """
        self.add_reversals = _insert(dialect, "reversals", "entry_id, reversal_id, replacement_id")
        self.confirm = f"UPDATE orphans SET confirmed = true WHERE entry_id {first}"
        self.find_entries = f"SELECT number, text, hash FROM entries WHERE entry_id {first} LIMIT $2"
        # One statement sees one moment.
        self.tables = f"""
        SELECT
            entries,
            hash,
            (SELECT {dialect.bodies} FROM positions WHERE account_id = $1),
            (SELECT {dialect.amounts} FROM balances WHERE account_id = $1)
        FROM accounts WHERE account_id = $1
        """


def _wanted(dialect: Dialect, *columns: str) -> str:
    """The keys in the JSON text `$1`, an array of arrays, as the table `wanted`."""
    members = ", ".join(f"value ->> {number} AS {column}" for number, column in enumerate(columns))
    return f"(SELECT {members} FROM {dialect.each.format('$1')}) AS wanted"


def _rows_of_keys(dialect: Dialect, columns: str, table: str, key: Sequence[str]) -> str:
    where = " AND ".join(f"{table}.{column} = wanted.{column}" for column in key)
    return f"SELECT {columns} FROM {_wanted(dialect, *key)} CROSS JOIN {table} WHERE {where}"


def _insert(dialect: Dialect, table: str, columns: str) -> str:
    return f"INSERT INTO {table} ({columns}) {dialect.given(columns.count(',') + 1)}"


def _upsert(dialect: Dialect, table: str, columns: str, key: str) -> str:
    changed = [column for column in columns.split(", ") if column not in key.split(", ")]
    updates = ", ".join(f"{column} = excluded.{column}" for column in changed)
    return f"{_insert(dialect, table, columns)} ON CONFLICT ({key}) DO UPDATE SET {updates}"
