-- The journal and the rows derived from it.
--
-- Amounts are TEXT, because arithmetic happens in Python only. Times are TEXT in one fixed form (microseconds, UTC)
-- where they are compared or sorted, so that their text order is their time order.

CREATE TABLE journal_heads (
    shard INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    hash  TEXT NOT NULL,
    at    TEXT NOT NULL
) STRICT;

INSERT INTO journal_heads (shard, epoch, seq, hash, at)
VALUES (0, 1, 0, printf('%.64d', 0), '1970-01-01T00:00:00.000000Z');

-- The identity of this database; one row, inserted with the schema.
CREATE TABLE installation (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id  TEXT NOT NULL,
    tag TEXT NOT NULL
) STRICT;

-- The numbers between after_seq and first_seq belong to no event: a reader that has one of them read another history.
CREATE TABLE journal_epochs (
    shard     INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    after_seq INTEGER NOT NULL,
    opened_at TEXT NOT NULL,
    PRIMARY KEY (shard, epoch)
) STRICT, WITHOUT ROWID;

INSERT INTO journal_epochs (shard, epoch, first_seq, after_seq, opened_at)
VALUES (0, 1, 1, 0, '1970-01-01T00:00:00.000000Z');

-- An embedded journal has one shard, so `seq` is the row id: an append writes at the end of the table, and a sealed
-- range of `seq` can be verified, copied and dropped separately.
CREATE TABLE events (
    seq        INTEGER PRIMARY KEY,
    epoch      INTEGER NOT NULL,
    at         TEXT NOT NULL,
    type       TEXT NOT NULL,
    account_id TEXT NOT NULL,
    order_id   TEXT,
    data       TEXT NOT NULL, -- JSON
    digest     BLOB NOT NULL  -- of the line
) STRICT;

CREATE INDEX events_of_account ON events (account_id);
CREATE INDEX events_of_order ON events (order_id) WHERE order_id IS NOT NULL;

CREATE TABLE orders (
    order_id              TEXT PRIMARY KEY,
    account_id            TEXT NOT NULL,
    client_order_id       TEXT,
    venue_client_order_id TEXT NOT NULL UNIQUE,
    symbol                TEXT NOT NULL,
    side                  TEXT NOT NULL,
    type                  TEXT NOT NULL,
    time_in_force         TEXT NOT NULL,
    qty                   TEXT NOT NULL,
    price                 TEXT,
    stop_price            TEXT,
    status                TEXT NOT NULL,
    filled_qty            TEXT NOT NULL,
    filled_notional       TEXT NOT NULL,
    venue                 TEXT NOT NULL,
    venue_order_id        TEXT,
    reason                TEXT,
    strategy              TEXT,
    tags                  TEXT NOT NULL,
    accepted_at           TEXT NOT NULL,
    updated_at            TEXT NOT NULL,
    version               INTEGER NOT NULL,
    -- What is known of the order's request. The row of its idempotency key gets the order's result in the commit that
    -- ends the order.
    trace_id              TEXT,
    requested_at          TEXT,
    operation             TEXT,
    idempotency_key       TEXT,
    -- What the order reserves while it is open.
    currency              TEXT,
    multiplier            TEXT NOT NULL,
    reserve_price         TEXT,
    reducing              INTEGER NOT NULL,
    expires_at            TEXT, -- of a DAY order the end of its trading day, of a GTD order its own end
    reduce_only           INTEGER NOT NULL, -- placed to close a position
    -- What an amend asks for that is not settled, and what the last one made of the order at its venue.
    amend_qty             TEXT,
    amend_reserve_price   TEXT,
    leg_client_order_id   TEXT,
    leg_end               TEXT,
    -- What only some venues have.
    post_only             INTEGER NOT NULL,
    display_qty           TEXT,
    venue_reduce_only     INTEGER NOT NULL -- asked for by the client; a close may go to any venue
) STRICT;

CREATE INDEX orders_of_account ON orders (account_id, order_id);
-- For rechecks of strategies; orders without a strategy do not write it.
CREATE INDEX orders_of_strategy ON orders (account_id, strategy, order_id) WHERE strategy IS NOT NULL;
-- The open orders at a venue, for the sweep that compares them with the venue's list. Final orders are not in the
-- index, so their number does not slow it down.
CREATE INDEX orders_open ON orders (venue, order_id)
    WHERE status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED');

CREATE TABLE idempotency_keys (
    account_id            TEXT NOT NULL,
    operation             TEXT NOT NULL,
    idempotency_key       TEXT NOT NULL,
    generation            INTEGER NOT NULL,
    order_id              TEXT NOT NULL,
    request_digest        TEXT NOT NULL,
    created_at            TEXT NOT NULL,
    expires_at            TEXT NOT NULL,
    status                TEXT NOT NULL,
    http_status           INTEGER,
    response_payload_json TEXT,
    result_digest         TEXT,
    version               INTEGER NOT NULL,
    PRIMARY KEY (account_id, operation, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox_orders (
    order_id              TEXT NOT NULL,
    kind                  TEXT NOT NULL,
    number                INTEGER NOT NULL,
    venue                 TEXT NOT NULL,
    venue_client_order_id TEXT NOT NULL,
    status                TEXT NOT NULL,
    attempt               INTEGER NOT NULL,
    next_attempt_at       TEXT NOT NULL,
    last_error            TEXT,
    worker                TEXT,
    created_at            TEXT NOT NULL,
    updated_at            TEXT NOT NULL,
    version               INTEGER NOT NULL,
    lane                  INTEGER NOT NULL, -- orders of one account and symbol share a lane
    bytes_sent            INTEGER NOT NULL,
    error_detail          TEXT,
    payload               TEXT, -- of an amend: what it asks for, as JSON
    traceparent           TEXT, -- the trace of the request that made the row; NULL without traces
    seq                   INTEGER NOT NULL, -- the journal number of the event that created the row
    PRIMARY KEY (order_id, kind, number)
) STRICT, WITHOUT ROWID;

-- A venue that replaces an amended order reports under the id of the amend.
CREATE UNIQUE INDEX outbox_amends ON outbox_orders (venue_client_order_id) WHERE kind = 'amend';

-- Sent and dead rows are in neither index, so their number does not slow a claim down.
CREATE INDEX outbox_due ON outbox_orders (seq, next_attempt_at, kind)
    WHERE status IN ('queued', 'failed');
-- Which lanes have a queue: a new order of such a lane is not sent before those that wait.
CREATE INDEX outbox_waiting ON outbox_orders (lane) WHERE status IN ('queued', 'failed') AND kind = 'new';
CREATE INDEX outbox_unsettled ON outbox_orders (status) WHERE status IN ('sending', 'uncertain');

CREATE TABLE positions (
    account_id         TEXT NOT NULL,
    symbol             TEXT NOT NULL,
    qty                TEXT NOT NULL,
    cost_basis         TEXT NOT NULL,
    realised_pnl       TEXT NOT NULL,
    trade_result       TEXT NOT NULL,
    consecutive_losses INTEGER NOT NULL,
    high_water_mark    TEXT NOT NULL,
    updated_at         TEXT NOT NULL,
    version            INTEGER NOT NULL,
    currency           TEXT,
    multiplier         TEXT NOT NULL,
    day                TEXT, -- the trading day of the last fill
    day_pnl            TEXT NOT NULL,
    PRIMARY KEY (account_id, symbol)
) STRICT, WITHOUT ROWID;

-- A report on an unknown order has an empty order_id and keeps the client order id that the venue gave. An order that
-- is accepted later under that id was executed before and must not be sent.
CREATE TABLE executions (
    venue                 TEXT NOT NULL,
    exec_id               TEXT NOT NULL,
    order_id              TEXT NOT NULL,
    stray_client_order_id TEXT,
    PRIMARY KEY (venue, exec_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX executions_stray ON executions (stray_client_order_id) WHERE stray_client_order_id IS NOT NULL;

CREATE TABLE reader_cursors (
    name  TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    hash  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per topic: the relay that publishes to it, and the last event up to which everything was delivered.
CREATE TABLE relays (
    topic      TEXT PRIMARY KEY,
    topic_id   TEXT NOT NULL, -- of the topic that the place is about
    epoch      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    hash       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    generation INTEGER NOT NULL, -- raised by every takeover: the fence
    beat       INTEGER NOT NULL  -- raised by every renewal
) STRICT, WITHOUT ROWID;

CREATE TABLE kills (
    kill_id        TEXT PRIMARY KEY,
    account_id     TEXT, -- NULL here and in the next three columns: any
    strategy       TEXT,
    venue          TEXT,
    symbol         TEXT,
    mode           TEXT NOT NULL,
    set_by         TEXT NOT NULL,
    set_reason     TEXT NOT NULL,
    set_at         TEXT NOT NULL,
    version        INTEGER NOT NULL,
    cleared_by     TEXT,
    cleared_reason TEXT,
    cleared_at     TEXT,
    seq            INTEGER NOT NULL -- the journal number of the event that set it
) STRICT, WITHOUT ROWID;

CREATE INDEX kills_active ON kills (kill_id) WHERE cleared_at IS NULL;

-- The orders that were open, and covered, when a kill was set.
CREATE TABLE kill_orders (
    kill_id  TEXT NOT NULL,
    order_id TEXT NOT NULL,
    PRIMARY KEY (kill_id, order_id)
) STRICT, WITHOUT ROWID;

-- The outcomes of recent groups, so that a repeated group id gets the same answer.
CREATE TABLE append_groups (
    group_id TEXT PRIMARY KEY,
    at       TEXT NOT NULL,
    outcomes TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The time of the process, for its next start (`StoredTime`); not derived from the journal, and one row at most.
CREATE TABLE steady_clock (
    only_row      INTEGER PRIMARY KEY CHECK (only_row = 1),
    ahead_seconds REAL NOT NULL, -- of the wall clock, at `written_at`
    written_at    TEXT NOT NULL,
    boot_id       TEXT,
    boot_seconds  REAL NOT NULL,
    jumped_at     TEXT,
    stepped_seconds REAL NOT NULL
) STRICT;
