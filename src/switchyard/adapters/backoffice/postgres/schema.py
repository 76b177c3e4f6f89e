"""The tables of the books in PostgreSQL, in a schema of their own, and the statements that write a page of events.

They are those of the SQLite file (`adapters/backoffice/schema.py`), with the types that PostgreSQL has.
"""

SCHEMA_VERSION = 1
# Compared byte by byte, as in Python and SQLite, whatever the database's locale is.
TEXT = 'text COLLATE "C"'
SCHEMA = f"""
CREATE TABLE version (number integer NOT NULL);
INSERT INTO version VALUES ({SCHEMA_VERSION});
CREATE TABLE sources (
    source {TEXT} PRIMARY KEY, position text NOT NULL, generation bigint NOT NULL, read_at timestamptz
);
CREATE TABLE accounts (
    account_id {TEXT} PRIMARY KEY, entries bigint NOT NULL, hash text NOT NULL, reached_at timestamptz,
    epoch bigint NOT NULL, seq bigint NOT NULL, halted_seq bigint, halted text
);
CREATE INDEX accounts_halted ON accounts (account_id) WHERE halted_seq IS NOT NULL;
CREATE TABLE entries (
    account_id {TEXT} NOT NULL, number bigint NOT NULL, entry_id {TEXT} NOT NULL UNIQUE, type {TEXT} NOT NULL,
    order_id {TEXT} NOT NULL, symbol {TEXT} NOT NULL, strategy {TEXT}, entered_by text, seq bigint NOT NULL,
    at timestamptz NOT NULL, reached_at timestamptz NOT NULL, text text NOT NULL, hash text NOT NULL,
    PRIMARY KEY (account_id, number)
);
CREATE INDEX entries_of_type ON entries (account_id, type, number);
CREATE INDEX entries_of_order ON entries (order_id, number);
CREATE INDEX entries_by_time ON entries (account_id, reached_at, number);
CREATE INDEX entries_by_people ON entries (account_id, number) WHERE entered_by IS NOT NULL;
CREATE INDEX entries_of_key ON entries (account_id, (text::jsonb ->> 'key')) WHERE entered_by IS NOT NULL;
CREATE INDEX entries_waiting ON entries (account_id, (text::jsonb ->> 'waitsFor')) WHERE type = 'RevisionNoted';
CREATE INDEX entries_of_strategy ON entries (account_id, strategy, at, number) WHERE strategy IS NOT NULL;
CREATE TABLE legs (
    account_id {TEXT} NOT NULL, number bigint NOT NULL, leg integer NOT NULL, account {TEXT} NOT NULL,
    unit {TEXT} NOT NULL, amount numeric NOT NULL,
    PRIMARY KEY (account_id, number, leg), FOREIGN KEY (account_id, number) REFERENCES entries
);
CREATE TABLE orders (order_id {TEXT} PRIMARY KEY, body text NOT NULL);
CREATE TABLE positions (
    account_id {TEXT} NOT NULL, strategy {TEXT} NOT NULL, symbol {TEXT} NOT NULL, currency {TEXT} NOT NULL,
    is_flat boolean NOT NULL, body text NOT NULL, PRIMARY KEY (account_id, strategy, symbol, currency)
);
CREATE TABLE balances (
    account_id {TEXT} NOT NULL, unit {TEXT} NOT NULL, account {TEXT} NOT NULL, amount numeric NOT NULL,
    PRIMARY KEY (account_id, unit, account)
);
CREATE TABLE day_positions (
    account_id {TEXT} NOT NULL, symbol {TEXT} NOT NULL, currency {TEXT} NOT NULL, day date NOT NULL,
    body text NOT NULL, PRIMARY KEY (account_id, symbol, currency, day)
);
CREATE TABLE day_balances (
    account_id {TEXT} NOT NULL, unit {TEXT} NOT NULL, account {TEXT} NOT NULL, day date NOT NULL,
    amount numeric NOT NULL, PRIMARY KEY (account_id, unit, account, day)
);
CREATE TABLE results (
    account_id {TEXT} NOT NULL, day date NOT NULL, symbol {TEXT} NOT NULL, currency {TEXT} NOT NULL,
    strategy {TEXT} NOT NULL, realised numeric NOT NULL, strategy_realised numeric NOT NULL, fees numeric NOT NULL,
    fills bigint NOT NULL, PRIMARY KEY (account_id, day, symbol, currency, strategy)
);
CREATE INDEX results_of_symbol ON results (account_id, symbol, currency, day);
CREATE INDEX results_of_strategy ON results (account_id, strategy, currency, day);
CREATE TABLE reversals (entry_id {TEXT} PRIMARY KEY, reversal_id {TEXT} NOT NULL, replacement_id {TEXT});
CREATE TABLE adoptions (
    epoch bigint PRIMARY KEY, after_seq bigint NOT NULL, first_seq bigint NOT NULL, by text NOT NULL,
    reason text NOT NULL, at timestamptz NOT NULL
);
CREATE TABLE orphans (
    account_id {TEXT} NOT NULL, number bigint NOT NULL, entry_id {TEXT} NOT NULL UNIQUE,
    confirmed boolean NOT NULL DEFAULT false, PRIMARY KEY (account_id, number)
);
CREATE FUNCTION reject_change() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN RAISE EXCEPTION '% are append-only', TG_TABLE_NAME; END$$;
CREATE TRIGGER entries_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON entries EXECUTE FUNCTION reject_change();
CREATE TRIGGER legs_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON legs EXECUTE FUNCTION reject_change();
"""

CLAIM = """
INSERT INTO sources (source, position, generation) VALUES ($1, $2, 1)
ON CONFLICT (source) DO UPDATE SET generation = sources.generation + 1 RETURNING position, generation
"""
RESET = """
INSERT INTO sources (source, position, generation) VALUES ($1, $2, 1)
ON CONFLICT (source) DO UPDATE SET generation = sources.generation + 1, position = excluded.position
"""
# Locked to the end of the transaction: a claim waits for the page, and the page for the claim.
SOURCE = "SELECT position, generation FROM sources WHERE source = $1 FOR UPDATE"
SOURCES = "SELECT source, position, generation, read_at FROM sources ORDER BY source"
MOVE = "UPDATE sources SET position = $2, read_at = coalesce($3, read_at) WHERE source = $1"
COUNT = "SELECT coalesce(sum(entries), 0)::bigint FROM accounts"
HALTED = """
SELECT account_id, halted_seq, halted FROM accounts WHERE halted_seq IS NOT NULL ORDER BY account_id LIMIT $1
"""
ACCOUNT_COLUMNS = "account_id, entries, hash, reached_at, epoch, seq, halted_seq, halted"

NEW_ACCOUNTS = f"""
INSERT INTO accounts ({ACCOUNT_COLUMNS}) SELECT id, 0, $2, NULL, 0, 0, NULL, NULL FROM unnest($1::text[]) AS id
ORDER BY id ON CONFLICT DO NOTHING
"""
# In one order for every writer, so that two of them never wait for each other.
FIND_ACCOUNTS = f"""
SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE account_id = ANY($1::text[]) ORDER BY account_id FOR UPDATE
"""
FIND_ORDERS = "SELECT body FROM orders WHERE order_id = ANY($1::text[])"
FIND_ENTRIES = "SELECT entry_id FROM entries WHERE entry_id = ANY($1::text[])"
FIND_WAITED_FOR = """
SELECT entries.account_id, exec_id FROM unnest($1::text[], $2::text[]) AS wanted (account_id, exec_id) JOIN entries
ON entries.account_id = wanted.account_id AND text::jsonb ->> 'waitsFor' = exec_id AND type = 'RevisionNoted'
"""
WAITING = """
SELECT text FROM entries
WHERE account_id = $1 AND text::jsonb ->> 'waitsFor' = $2 AND type = 'RevisionNoted' ORDER BY number
"""
FIND_POSITIONS = """
SELECT body
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS wanted (account_id, strategy, symbol, currency)
JOIN positions USING (account_id, strategy, symbol, currency)
"""
FIND_BALANCES = """
SELECT account_id, account, unit, amount
FROM unnest($1::text[], $2::text[], $3::text[]) AS wanted (account_id, account, unit)
JOIN balances USING (account_id, account, unit)
"""
ADD_ENTRIES = """
INSERT INTO entries (
    account_id, number, entry_id, type, order_id, symbol, strategy, entered_by, seq, at, reached_at, text, hash
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
"""
ADD_LEGS = "INSERT INTO legs (account_id, number, leg, account, unit, amount) VALUES ($1, $2, $3, $4, $5, $6)"
SET_ACCOUNTS = """
UPDATE accounts SET entries = $2, hash = $3, reached_at = $4, epoch = $5, seq = $6, halted_seq = $7, halted = $8
WHERE account_id = $1
"""
SET_ORDERS = "INSERT INTO orders VALUES ($1, $2) ON CONFLICT (order_id) DO UPDATE SET body = excluded.body"
SET_POSITIONS = """
INSERT INTO positions (account_id, strategy, symbol, currency, is_flat, body) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (account_id, strategy, symbol, currency) DO UPDATE SET is_flat = excluded.is_flat, body = excluded.body
"""
SET_BALANCES = """
INSERT INTO balances (account_id, account, unit, amount) VALUES ($1, $2, $3, $4)
ON CONFLICT (account_id, unit, account) DO UPDATE SET amount = excluded.amount
"""
SET_DAY_POSITIONS = """
INSERT INTO day_positions (account_id, symbol, currency, day, body) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (account_id, symbol, currency, day) DO UPDATE SET body = excluded.body
"""
SET_DAY_BALANCES = """
INSERT INTO day_balances (account_id, account, unit, day, amount) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (account_id, unit, account, day) DO UPDATE SET amount = excluded.amount
"""
ADD_RESULTS = """
INSERT INTO results (account_id, day, symbol, currency, strategy, realised, strategy_realised, fees, fills)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (account_id, day, symbol, currency, strategy) DO UPDATE SET
    realised = results.realised + excluded.realised,
    strategy_realised = results.strategy_realised + excluded.strategy_realised,
    fees = results.fees + excluded.fees, fills = results.fills + excluded.fills
"""
ADD_REVERSALS = "INSERT INTO reversals (entry_id, reversal_id, replacement_id) VALUES ($1, $2, $3)"
CONFIRM = "UPDATE orphans SET confirmed = true WHERE entry_id = ANY($1::text[])"
REVERSAL_OF = "SELECT replacement_id FROM reversals WHERE entry_id = $1"
STORED_OF = "SELECT number, text, hash FROM entries WHERE entry_id = $1"
STORED_OF_KEY = """
SELECT number, text, hash FROM entries WHERE account_id = $1 AND text::jsonb ->> 'key' = $2 AND entered_by IS NOT NULL
"""
UNREVERSED = """
SELECT text FROM entries
WHERE account_id = $1 AND symbol = $2 AND type IN ('Fill', 'OpeningPosition')
    AND NOT EXISTS (SELECT 1 FROM reversals WHERE reversals.entry_id = entries.entry_id)
ORDER BY number
"""
ADOPTIONS = "SELECT epoch, after_seq, first_seq, by, reason, at FROM adoptions ORDER BY epoch"
ADD_ADOPTION = "INSERT INTO adoptions (epoch, after_seq, first_seq, by, reason, at) VALUES ($1, $2, $3, $4, $5, $6)"
ADD_ORPHANS = """
WITH added AS (
    INSERT INTO orphans (account_id, number, entry_id)
    SELECT account_id, number, entry_id FROM entries WHERE seq > $1 AND seq < $2 AND entered_by IS NULL
    ON CONFLICT DO NOTHING RETURNING 1
) SELECT count(*) FROM added
"""
ADD_ORPHAN = "INSERT INTO orphans (account_id, number, entry_id) VALUES ($1, $2, $3)"
ORPHANS = """
SELECT entries.number, entries.text, entries.hash FROM orphans JOIN entries USING (account_id, number)
WHERE (orphans.account_id, orphans.number) > ($1, $2) AND NOT confirmed
ORDER BY orphans.account_id, orphans.number LIMIT $3
"""
CARRIED = """
SELECT number, text, hash FROM entries WHERE account_id = $1 AND number > $2 AND (
    entered_by IS NOT NULL
    OR EXISTS (SELECT 1 FROM orphans WHERE orphans.account_id = $1 AND orphans.number = entries.number)
) ORDER BY number LIMIT $3
"""
NOT_CARRIED = """
SELECT count(*) FROM "{old}".entries WHERE entered_by IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM "{new}".entries AS carried WHERE carried.entry_id = entries.entry_id)
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
