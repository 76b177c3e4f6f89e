"""The schema of the books' SQLite file, and the statements that write a page of events."""

SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE sources (              -- how far each source of events was read; the only offsets there are
    source TEXT PRIMARY KEY,        -- `journal`, or `kafka:<topic id>:<partition>`
    position TEXT NOT NULL,         -- as JSON: epoch, number and hash of an event, or the next offset
    generation INTEGER NOT NULL,    -- counts the claims: an older one cannot post any more
    read_at TEXT                    -- the time of the last event
) STRICT, WITHOUT ROWID;
CREATE TABLE accounts (
    account_id TEXT PRIMARY KEY,
    entries INTEGER NOT NULL,       -- the last entry's number and hash
    hash TEXT NOT NULL,
    reached_at TEXT,                -- the latest time of an entry
    epoch INTEGER NOT NULL,         -- with seq: the account's last event that was read
    seq INTEGER NOT NULL,
    halted_seq INTEGER,             -- the event at which the account has halted
    halted TEXT                     -- and why
) STRICT, WITHOUT ROWID;
CREATE INDEX accounts_halted ON accounts (account_id) WHERE halted_seq IS NOT NULL;
CREATE TABLE entries (
    account_id TEXT NOT NULL,
    number INTEGER NOT NULL,        -- from 1, without a gap, in each account
    entry_id TEXT NOT NULL UNIQUE,
    type TEXT NOT NULL,
    order_id TEXT NOT NULL,
    strategy TEXT,
    at TEXT NOT NULL,
    reached_at TEXT NOT NULL,       -- the latest `at` of the account up to here: never decreases
    text TEXT NOT NULL,             -- the whole entry as JSON: the hashed bytes
    hash TEXT NOT NULL,
    PRIMARY KEY (account_id, number)
) STRICT;
CREATE INDEX entries_of_type ON entries (account_id, type, number);
CREATE INDEX entries_of_order ON entries (order_id, number);
CREATE INDEX entries_by_time ON entries (account_id, reached_at, number);
CREATE INDEX entries_of_strategy ON entries (strategy, at, account_id, number) WHERE strategy IS NOT NULL;
CREATE TABLE legs (
    account_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    leg INTEGER NOT NULL,
    account TEXT NOT NULL,
    unit TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (account_id, number, leg),
    FOREIGN KEY (account_id, number) REFERENCES entries
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

SOURCE = "SELECT position, generation FROM sources WHERE source = ?"
SOURCES = "SELECT source, position, generation, read_at FROM sources ORDER BY source"
CLAIM = """
INSERT INTO sources (source, position, generation) VALUES (?, ?, 1)
ON CONFLICT (source) DO UPDATE SET generation = generation + 1
"""
RESET = """
INSERT INTO sources (source, position, generation) VALUES (?, ?, 1)
ON CONFLICT (source) DO UPDATE SET generation = generation + 1, position = excluded.position
"""
MOVE = "UPDATE sources SET position = ?, read_at = coalesce(?, read_at) WHERE source = ?"
COUNT = "SELECT coalesce(sum(entries), 0) FROM accounts"
HALTED = """
SELECT account_id, halted_seq, halted FROM accounts WHERE halted_seq IS NOT NULL ORDER BY account_id LIMIT ?
"""

# Each takes one JSON text for all rows of a page: every call of SQLite releases and takes the interpreter lock, which
# other threads compete for.
FIND_ACCOUNTS = """
SELECT account_id, entries, hash, reached_at, epoch, seq, halted_seq, halted
FROM json_each(?) CROSS JOIN accounts ON account_id = value
"""
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
INSERT INTO entries (account_id, number, entry_id, type, order_id, strategy, at, reached_at, text, hash)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 8, value ->> 9
FROM json_each(?)
"""
ADD_LEGS = """
INSERT INTO legs (account_id, number, leg, account, unit, amount)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?)
"""
SET_ACCOUNTS = """
INSERT OR REPLACE INTO accounts (account_id, entries, hash, reached_at, epoch, seq, halted_seq, halted)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
FROM json_each(?)
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
ENTRIES_OF_STRATEGY = """
SELECT number, text, hash FROM entries
WHERE strategy = ? AND (at, account_id, number) > (?, ?, ?) ORDER BY at, account_id, number LIMIT ?
"""
