"""The schema of the books' SQLite file, and the statements that write a page of events."""

SCHEMA_VERSION = 3
SCHEMA = """
CREATE TABLE sources (              -- how far each source of events was read; the only offsets there are
    source TEXT PRIMARY KEY,        -- `journal`, or `kafka:<topic id>/<partitions>:<partition>`
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
    order_id TEXT NOT NULL,         -- empty for an entry by a person
    symbol TEXT NOT NULL,           -- empty where it has none
    strategy TEXT,
    entered_by TEXT,                -- the person, where one entered it
    seq INTEGER NOT NULL,           -- the event that it books, or the account's last one before it
    at TEXT NOT NULL,
    reached_at TEXT NOT NULL,       -- the latest `at` of the account up to here: never decreases
    text TEXT NOT NULL,             -- the whole entry as JSON: the hashed bytes
    hash TEXT NOT NULL,
    PRIMARY KEY (account_id, number)
) STRICT;
CREATE INDEX entries_of_type ON entries (account_id, type, number);
CREATE INDEX entries_of_order ON entries (order_id, number);
CREATE INDEX entries_by_time ON entries (account_id, reached_at, number);
CREATE INDEX entries_by_people ON entries (account_id, number) WHERE entered_by IS NOT NULL;
CREATE INDEX entries_of_key ON entries (account_id, text ->> 'key') WHERE entered_by IS NOT NULL;
CREATE INDEX entries_waiting ON entries (account_id, text ->> 'waitsFor') WHERE type = 'RevisionNoted';
CREATE INDEX entries_of_strategy ON entries (account_id, strategy, at, number) WHERE strategy IS NOT NULL;
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
    strategy TEXT NOT NULL,         -- `*` for the account as a whole, empty for fills without a strategy
    symbol TEXT NOT NULL,
    currency TEXT NOT NULL,
    is_flat INTEGER NOT NULL,
    body TEXT NOT NULL,             -- the Holding as JSON
    PRIMARY KEY (account_id, strategy, symbol, currency)
) STRICT, WITHOUT ROWID;
CREATE TABLE balances (
    account_id TEXT NOT NULL,
    unit TEXT NOT NULL,
    account TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (account_id, unit, account)
) STRICT, WITHOUT ROWID;
CREATE TABLE day_positions (        -- of the account as a whole, at the end of each day that moved it
    account_id TEXT NOT NULL,
    symbol TEXT NOT NULL,
    currency TEXT NOT NULL,
    day TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (account_id, symbol, currency, day)
) STRICT, WITHOUT ROWID;
CREATE TABLE day_balances (
    account_id TEXT NOT NULL,
    unit TEXT NOT NULL,
    account TEXT NOT NULL,
    day TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (account_id, unit, account, day)
) STRICT, WITHOUT ROWID;
CREATE TABLE results (
    account_id TEXT NOT NULL,
    day TEXT NOT NULL,
    symbol TEXT NOT NULL,
    currency TEXT NOT NULL,
    strategy TEXT NOT NULL,
    realised TEXT NOT NULL,
    strategy_realised TEXT NOT NULL,
    fees TEXT NOT NULL,
    fills INTEGER NOT NULL,
    PRIMARY KEY (account_id, day, symbol, currency, strategy)
) STRICT, WITHOUT ROWID;
CREATE INDEX results_of_symbol ON results (account_id, symbol, currency, day);
CREATE INDEX results_of_strategy ON results (account_id, strategy, currency, day);
CREATE TABLE reversals (
    entry_id TEXT PRIMARY KEY,      -- the entry that was taken back
    reversal_id TEXT NOT NULL,
    replacement_id TEXT             -- the fill that a correction booked instead
) STRICT, WITHOUT ROWID;
CREATE TABLE adoptions (            -- journals of a new epoch that a person has the books follow
    epoch INTEGER PRIMARY KEY,
    after_seq INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    by TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT;
CREATE TABLE orphans (              -- entries that the adopted journal does not have
    account_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    entry_id TEXT NOT NULL UNIQUE,
    confirmed INTEGER NOT NULL DEFAULT 0,  -- whether the journal has reported the execution again
    PRIMARY KEY (account_id, number)
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

# Each takes one JSON text for all rows of a page: one statement instead of a lookup for each row.
FIND_ACCOUNTS = """
SELECT account_id, entries, hash, reached_at, epoch, seq, halted_seq, halted
FROM jsonb_each(?) CROSS JOIN accounts ON account_id = value
"""
FIND_ORDERS = "SELECT body FROM jsonb_each(?) CROSS JOIN orders ON order_id = value"
FIND_ENTRIES = "SELECT entry_id FROM jsonb_each(?) CROSS JOIN entries ON entry_id = value"
FIND_WAITED_FOR = """
SELECT account_id, text ->> 'waitsFor' FROM jsonb_each(?) CROSS JOIN entries INDEXED BY entries_waiting
ON account_id = value ->> 0 AND text ->> 'waitsFor' = value ->> 1 AND entries.type = 'RevisionNoted'
"""
WAITING = """
SELECT text FROM entries INDEXED BY entries_waiting
WHERE account_id = ? AND text ->> 'waitsFor' = ? AND type = 'RevisionNoted' ORDER BY number
"""
FIND_POSITIONS = """
SELECT body FROM jsonb_each(?) CROSS JOIN positions
ON account_id = value ->> 0 AND strategy = value ->> 1 AND symbol = value ->> 2 AND currency = value ->> 3
"""
FIND_BALANCES = """
SELECT account_id, account, unit, amount FROM jsonb_each(?) CROSS JOIN balances
ON account_id = value ->> 0 AND account = value ->> 1 AND unit = value ->> 2
"""
# Each writes one row with bound values, which are cheaper than values out of JSON. Every call releases and takes the
# interpreter lock, but in the process of the books little else competes for it.
ADD_ENTRIES = """
INSERT INTO entries (
    account_id, number, entry_id, type, order_id, symbol, strategy, entered_by, seq, at, reached_at, text, hash
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
ADD_LEGS = """
INSERT INTO legs (account_id, number, leg, account, unit, amount)
VALUES (?, ?, ?, ?, ?, ?)
"""
SET_ACCOUNTS = """
INSERT OR REPLACE INTO accounts (account_id, entries, hash, reached_at, epoch, seq, halted_seq, halted)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
SET_ORDERS = "INSERT OR REPLACE INTO orders (order_id, body) VALUES (?, ?)"
SET_POSITIONS = """
INSERT OR REPLACE INTO positions (account_id, strategy, symbol, currency, is_flat, body)
VALUES (?, ?, ?, ?, ?, ?)
"""
SET_BALANCES = """
INSERT OR REPLACE INTO balances (account_id, account, unit, amount)
VALUES (?, ?, ?, ?)
"""
SET_DAY_POSITIONS = """
INSERT OR REPLACE INTO day_positions (account_id, symbol, currency, day, body)
VALUES (?, ?, ?, ?, ?)
"""
SET_DAY_BALANCES = """
INSERT OR REPLACE INTO day_balances (account_id, account, unit, day, amount)
VALUES (?, ?, ?, ?, ?)
"""
# `add_amounts` is a function of the connection: the file's amounts are texts.
ADD_RESULTS = """
INSERT INTO results (account_id, day, symbol, currency, strategy, realised, strategy_realised, fees, fills)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    realised = add_amounts(realised, excluded.realised),
    strategy_realised = add_amounts(strategy_realised, excluded.strategy_realised),
    fees = add_amounts(fees, excluded.fees),
    fills = fills + excluded.fills
"""
ADD_REVERSALS = """
INSERT INTO reversals (entry_id, reversal_id, replacement_id)
VALUES (?, ?, ?)
"""
CONFIRM = "UPDATE orphans SET confirmed = 1 WHERE entry_id IN (SELECT value FROM jsonb_each(?))"
REVERSAL_OF = "SELECT replacement_id FROM reversals WHERE entry_id = ?"
ENTRY_OF = "SELECT text FROM entries WHERE entry_id = ?"
STORED_OF = "SELECT number, text, hash FROM entries WHERE entry_id = ?"
STORED_OF_KEY = """
SELECT number, text, hash FROM entries WHERE account_id = ? AND text ->> 'key' = ? AND entered_by IS NOT NULL
"""
UNREVERSED = """
SELECT text FROM entries
WHERE account_id = ? AND symbol = ? AND type IN ('Fill', 'OpeningPosition')
    AND NOT EXISTS (SELECT 1 FROM reversals WHERE reversals.entry_id = entries.entry_id)
ORDER BY number
"""

ADOPTIONS = "SELECT epoch, after_seq, first_seq, by, reason, at FROM adoptions ORDER BY epoch"
ADD_ADOPTION = "INSERT INTO adoptions (epoch, after_seq, first_seq, by, reason, at) VALUES (?, ?, ?, ?, ?, ?)"
ADD_ORPHANS = """
INSERT OR IGNORE INTO orphans (account_id, number, entry_id)
SELECT account_id, number, entry_id FROM entries WHERE seq > ? AND seq < ? AND entered_by IS NULL
"""
ADD_ORPHAN = "INSERT INTO orphans (account_id, number, entry_id) VALUES (?, ?, ?)"
ORPHANS = """
SELECT entries.number, entries.text, entries.hash FROM orphans JOIN entries USING (account_id, number)
WHERE (orphans.account_id, orphans.number) > (?, ?) AND NOT confirmed
ORDER BY orphans.account_id, orphans.number LIMIT ?
"""
CARRIED = """
SELECT number, text, hash FROM entries WHERE account_id = ?1 AND number > ?2 AND entered_by IS NOT NULL
UNION
SELECT number, text, hash FROM orphans JOIN entries USING (account_id, number) WHERE account_id = ?1 AND number > ?2
ORDER BY number LIMIT ?3
"""

POSITIONS_OF = """
SELECT body FROM positions
WHERE account_id = ? AND strategy = '*' AND (symbol, currency) > (?, ?) AND (? OR NOT is_flat)
ORDER BY symbol, currency LIMIT ?
"""
BALANCES_OF = """
SELECT account, unit, amount FROM balances
WHERE account_id = ?1 AND account NOT IN ('position', 'position_clearing') AND unit IN (
    SELECT DISTINCT unit FROM balances
    WHERE account_id = ?1 AND unit > ?2 AND account NOT IN ('position', 'position_clearing') ORDER BY unit LIMIT ?3
)
ORDER BY unit, account
"""
OPEN_POSITIONS = """
SELECT body FROM positions WHERE account_id = ?1 AND (strategy = '*') <> ?2 AND NOT is_flat
ORDER BY strategy, symbol, currency LIMIT ?3
"""
CLOSING_POSITIONS = """
SELECT body, max(day) FROM day_positions
WHERE account_id = ? AND (symbol, currency) > (?, ?) AND day <= ?
GROUP BY symbol, currency HAVING body ->> 'qty' <> '0' ORDER BY symbol, currency LIMIT ?
"""
CLOSING_BALANCES = """
SELECT account, unit, amount, max(day) FROM day_balances
WHERE account_id = ?1 AND account NOT IN ('position', 'position_clearing') AND day <= ?2 AND unit IN (
    SELECT DISTINCT unit FROM day_balances
    WHERE account_id = ?1 AND unit > ?3 AND day <= ?2 AND account NOT IN ('position', 'position_clearing')
    ORDER BY unit LIMIT ?4
)
GROUP BY unit, account ORDER BY unit, account
"""
RESULTS = """
SELECT {name}, currency, realised, strategy_realised, fees, fills FROM results
WHERE account_id = ? AND day >= ? AND day <= ? AND ({name}, currency) > (?, ?) ORDER BY {name}, currency
"""
ENTRIES_OF_STRATEGY = """
SELECT number, text, hash FROM entries
WHERE account_id = ? AND strategy = ? AND (at, number) > (?, ?) ORDER BY at, number LIMIT ?
"""
