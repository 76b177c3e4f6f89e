"""The schema of the books' SQLite file."""

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
