"""The tables of the books in PostgreSQL, in a schema of their own.

They are those of the SQLite file (`adapters/backoffice/sqlite/schema.py`), with the types that PostgreSQL has.
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
