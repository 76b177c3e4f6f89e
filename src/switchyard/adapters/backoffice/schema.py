"""The schema of the books' SQLite file, and the statements that write a page of events."""

from switchyard.domain.chain import GENESIS

SCHEMA_VERSION = 1
SCHEMA = f"""
CREATE TABLE ledger (               -- one row: how far the books are
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,         -- with seq and hash: the last event that was read; the only offset there is
    seq INTEGER NOT NULL,
    hash TEXT NOT NULL,
    read_at TEXT,                   -- the time of that event
    entries INTEGER NOT NULL,       -- the last entry's number and hash
    entries_hash TEXT NOT NULL
) STRICT;
INSERT INTO ledger VALUES (1, 1, 0, '{GENESIS}', NULL, 0, '{GENESIS}');
CREATE TABLE entries (
    number INTEGER PRIMARY KEY,     -- from 1, without a gap
    entry_id TEXT NOT NULL UNIQUE,
    type TEXT NOT NULL,
    account_id TEXT NOT NULL,
    order_id TEXT NOT NULL,
    at TEXT NOT NULL,               -- never decreases
    text TEXT NOT NULL,             -- the whole entry as JSON: the hashed bytes
    hash TEXT NOT NULL
) STRICT;
CREATE INDEX entries_of_account ON entries (account_id, number);
CREATE INDEX entries_of_type ON entries (account_id, type, number);
CREATE INDEX entries_of_order ON entries (order_id, number);
CREATE INDEX entries_by_time ON entries (at);
CREATE TABLE legs (
    number INTEGER NOT NULL REFERENCES entries,
    leg INTEGER NOT NULL,
    account_id TEXT NOT NULL,
    account TEXT NOT NULL,
    unit TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (number, leg)
) STRICT, WITHOUT ROWID;
CREATE TABLE orders (
    order_id TEXT PRIMARY KEY,
    body TEXT NOT NULL              -- the BookedOrder as JSON
) STRICT, WITHOUT ROWID;
CREATE TABLE positions (
    account_id TEXT NOT NULL,
    symbol TEXT NOT NULL,
    currency TEXT NOT NULL,
    body TEXT NOT NULL,             -- the Holding as JSON
    PRIMARY KEY (account_id, symbol, currency)
) STRICT, WITHOUT ROWID;
CREATE TABLE balances (
    account_id TEXT NOT NULL,
    unit TEXT NOT NULL,
    account TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (account_id, unit, account)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;
CREATE TRIGGER entries_remain BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;
CREATE TRIGGER legs_stay BEFORE UPDATE ON legs BEGIN SELECT RAISE(ABORT, 'legs are append-only'); END;
CREATE TRIGGER legs_remain BEFORE DELETE ON legs BEGIN SELECT RAISE(ABORT, 'legs are append-only'); END;
"""

STATE = "SELECT epoch, seq, hash, read_at, entries, entries_hash FROM ledger"
MOVE = "UPDATE ledger SET epoch = ?, seq = ?, hash = ?, read_at = ?, entries = ?, entries_hash = ?"

# Each takes one JSON text for all rows of a page: every call of SQLite releases and takes the interpreter lock, which
# other threads compete for.
FIND_ORDERS = "SELECT body FROM json_each(?) CROSS JOIN orders ON order_id = value"
FIND_ENTRIES = "SELECT entry_id FROM json_each(?) CROSS JOIN entries ON entry_id = value"
FIND_POSITIONS = """
SELECT body FROM json_each(?) CROSS JOIN positions
ON account_id = value ->> 0 AND symbol = value ->> 1 AND currency = value ->> 2
"""
FIND_BALANCES = """
SELECT account_id, account, unit, amount FROM json_each(?) CROSS JOIN balances
ON account_id = value ->> 0 AND account = value ->> 1 AND unit = value ->> 2
"""
ADD_ENTRIES = """
INSERT INTO entries (number, entry_id, type, account_id, order_id, at, text, hash)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
FROM json_each(?)
"""
ADD_LEGS = """
INSERT INTO legs (number, leg, account_id, account, unit, amount)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?)
"""
SET_ORDERS = "INSERT OR REPLACE INTO orders (order_id, body) SELECT value ->> 0, value ->> 1 FROM json_each(?)"
SET_POSITIONS = """
INSERT OR REPLACE INTO positions (account_id, symbol, currency, body)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?)
"""
SET_BALANCES = """
INSERT OR REPLACE INTO balances (account_id, account, unit, amount)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?)
"""

POSITIONS_OF = """
SELECT body FROM positions
WHERE account_id = ? AND (symbol, currency) > (?, ?) AND (? OR body ->> 'qty' <> '0')
ORDER BY symbol, currency LIMIT ?
"""
BALANCES_OF = """
SELECT account, unit, amount FROM balances
WHERE account_id = ?1 AND account IN ('cash', 'trading', 'fees') AND unit IN (
    SELECT DISTINCT unit FROM balances
    WHERE account_id = ?1 AND unit > ?2 AND account IN ('cash', 'trading', 'fees') ORDER BY unit LIMIT ?3
)
ORDER BY unit, account
"""
