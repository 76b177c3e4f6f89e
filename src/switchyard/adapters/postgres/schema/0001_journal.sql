-- The journal and the rows derived from it. Ids compare by bytes, as they do in Python, whatever the database's locale.

CREATE TABLE journal_heads (
    shard integer PRIMARY KEY,
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    hash text NOT NULL,
    at timestamptz -- of the newest event; none in an empty journal
);

-- Split by seq, so that a sealed segment can be verified, archived and dropped alone.
CREATE TABLE events (
    shard integer NOT NULL,
    seq bigint NOT NULL,
    epoch integer NOT NULL,
    at timestamptz NOT NULL,
    type text NOT NULL,
    account_id text COLLATE "C" NOT NULL,
    order_id text COLLATE "C",
    text text NOT NULL,
    hash text NOT NULL,
    PRIMARY KEY (shard, seq)
) PARTITION BY RANGE (seq);
CREATE INDEX events_of_account ON events (account_id, seq);
CREATE INDEX events_of_order ON events (order_id, seq);

CREATE TABLE orders (
    order_id text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL,
    client_order_id text,
    venue_client_order_id text COLLATE "C" NOT NULL UNIQUE,
    symbol text NOT NULL,
    side text NOT NULL,
    type text NOT NULL,
    time_in_force text NOT NULL,
    qty numeric NOT NULL,
    price numeric,
    stop_price numeric,
    status text NOT NULL,
    filled_qty numeric NOT NULL,
    filled_notional numeric NOT NULL,
    venue text NOT NULL,
    venue_order_id text,
    reason text,
    strategy text,
    tags text[] NOT NULL,
    accepted_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version integer NOT NULL
);
CREATE INDEX orders_of_account ON orders (account_id, order_id);

CREATE TABLE idempotency_keys (
    account_id text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    generation integer NOT NULL,
    order_id text COLLATE "C" NOT NULL,
    request_digest text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, operation, idempotency_key)
);

CREATE TABLE outbox_orders (
    order_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    number integer NOT NULL,
    venue text NOT NULL,
    venue_client_order_id text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    attempt integer NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    last_error text,
    worker text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version integer NOT NULL,
    PRIMARY KEY (order_id, kind, number),
    UNIQUE (venue_client_order_id, kind, number)
) WITH (
    -- Every row dies twice on its way to 'sent'; with the default fifth of the table, a claim would wade through the dead.
    autovacuum_vacuum_scale_factor = 0.02
);
-- Unfinished rows only, so that a claim costs the same whatever has been finished before. A new row is due at once and
-- is walked in the order of acceptance; a failed one waits for its time. One index over both would have to sort the
-- whole backlog for each claim.
CREATE INDEX outbox_queued ON outbox_orders (created_at, order_id) WHERE status = 'queued';
CREATE INDEX outbox_failed ON outbox_orders (next_attempt_at) WHERE status = 'failed';
CREATE INDEX outbox_open ON outbox_orders (status, created_at, order_id) WHERE status IN ('sending', 'uncertain');

CREATE TABLE positions (
    account_id text COLLATE "C" NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    qty numeric NOT NULL,
    cost_basis numeric NOT NULL,
    realised_pnl numeric NOT NULL,
    trade_result numeric NOT NULL,
    consecutive_losses integer NOT NULL,
    high_water_mark numeric NOT NULL,
    updated_at timestamptz NOT NULL,
    version integer NOT NULL,
    PRIMARY KEY (account_id, symbol)
) WITH (
    -- The same few rows are written over and over: room on the page keeps the new versions out of the index.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02
);

CREATE TABLE executions (
    venue text COLLATE "C" NOT NULL,
    exec_id text COLLATE "C" NOT NULL,
    order_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (venue, exec_id)
);

CREATE TABLE reader_cursors (
    name text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    hash text NOT NULL
);

-- What each group was answered, for the caller whose answer was lost.
CREATE TABLE append_groups (
    group_id text COLLATE "C" PRIMARY KEY,
    seq_before bigint NOT NULL,
    conflicts integer[] NOT NULL,
    taken json,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX append_groups_by_age ON append_groups (recorded_at);
