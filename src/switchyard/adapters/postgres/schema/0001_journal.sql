-- The journal and the rows derived from it. Ids compare by bytes (COLLATE "C"), as in Python, whatever the database's
-- locale. In the tables that have rows for every order, columns of fixed width come first: they need no padding there.

CREATE TABLE journal_heads (
    shard integer PRIMARY KEY,
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    hash text NOT NULL,
    at timestamptz, -- of the newest event; NULL while the journal is empty
    keeps_exposures boolean NOT NULL DEFAULT false -- from the first claim of a limit on
);

-- The identity of this database; one row, inserted with the schema.
CREATE TABLE installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL,
    tag text NOT NULL
);

-- The numbers between after_seq and first_seq belong to no event: a reader that has one of them read another history.
CREATE TABLE journal_epochs (
    shard integer NOT NULL,
    epoch integer NOT NULL,
    first_seq bigint NOT NULL,
    after_seq bigint NOT NULL,
    opened_at timestamptz NOT NULL,
    PRIMARY KEY (shard, epoch)
);
INSERT INTO journal_epochs (shard, epoch, first_seq, after_seq, opened_at) VALUES (0, 1, 1, 0, now());

-- Partitioned by seq, so that a sealed segment can be verified, archived and dropped separately.
CREATE TABLE events (
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    shard integer NOT NULL,
    epoch integer NOT NULL,
    type text NOT NULL,
    account_id text COLLATE "C" NOT NULL,
    order_id text COLLATE "C",
    data text NOT NULL, -- JSON
    digest bytea NOT NULL, -- of the line
    PRIMARY KEY (shard, seq)
) PARTITION BY RANGE (seq);
CREATE INDEX events_of_account ON events (account_id, seq);
-- Without `seq`, the events of an order share one entry. There are few, so they are sorted when they are read.
CREATE INDEX events_of_order ON events (order_id) WHERE order_id IS NOT NULL;

CREATE TABLE orders (
    accepted_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version integer NOT NULL,
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
    -- What is known of the order's request. The row of its idempotency key gets the order's result in the commit that
    -- ends the order.
    trace_id text,
    requested_at timestamptz,
    operation text,
    idempotency_key text,
    -- What the order reserves while it is open.
    currency text COLLATE "C",
    multiplier numeric NOT NULL,
    reserve_price numeric,
    reducing boolean NOT NULL,
    expires_at timestamptz, -- of a DAY order the end of its trading day, of a GTD order its own end
    reduce_only boolean NOT NULL, -- placed to close a position
    -- What an amend asks for that is not settled, and what the last one made of the order at its venue.
    amend_qty numeric,
    amend_reserve_price numeric,
    leg_client_order_id text COLLATE "C",
    leg_end text,
    -- What only some venues have.
    post_only boolean NOT NULL,
    display_qty numeric,
    venue_reduce_only boolean NOT NULL -- asked for by the client; a close may go to any venue
) WITH (
    -- An order is updated several times within moments. With free space on its page, and no index on a column that
    -- changes, each update is a heap-only tuple and writes to no index.
    fillfactor = 50
);
CREATE INDEX orders_of_account ON orders (account_id, order_id);
-- For rechecks of strategies; orders without a strategy do not write it.
CREATE INDEX orders_of_strategy ON orders (account_id, strategy, order_id) WHERE strategy IS NOT NULL;

-- The orders that have not ended, for sweeps, kills and limits. A table, and not an index of `orders` with that condition:
-- an update that changes the condition of an index writes to every index of the table, and every order ends once.
CREATE TABLE unfinished_orders (
    order_id text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL,
    venue text NOT NULL
) WITH (
    -- Most rows are dead soon: at the default of 20 % of the table, a query would read too many of them. Giving pages back
    -- takes a lock that every append would wait for, and the next orders need them again.
    autovacuum_vacuum_scale_factor = 0.02,
    vacuum_truncate = false
);

CREATE TABLE idempotency_keys (
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    generation integer NOT NULL,
    version integer NOT NULL,
    account_id text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    order_id text COLLATE "C" NOT NULL,
    request_digest text NOT NULL,
    status text NOT NULL,
    http_status integer,
    response_payload_json text,
    result_digest text,
    PRIMARY KEY (account_id, operation, idempotency_key)
) WITH (
    -- A row gets its result when its order ends: with free space on its page that is a heap-only tuple, without a second
    -- entry in the index.
    fillfactor = 50
);

CREATE TABLE outbox_orders (
    seq bigint NOT NULL, -- the journal number of the event that created the row
    next_attempt_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    number integer NOT NULL,
    attempt integer NOT NULL,
    version integer NOT NULL,
    lane smallint NOT NULL, -- orders of one account and symbol share a lane
    bytes_sent boolean NOT NULL,
    order_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    venue text NOT NULL,
    venue_client_order_id text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    last_error text,
    worker text,
    error_detail text,
    payload text, -- of an amend: what it asks for, as JSON
    traceparent text, -- the trace of the request that made the row; NULL without traces
    PRIMARY KEY (order_id, kind, number)
) WITH (
    -- A row is updated twice before it is 'sent' and leaves two dead tuples. At the default of 20 % of the table, a
    -- claim would read too many of them.
    autovacuum_vacuum_scale_factor = 0.02
);
-- A venue that replaces an amended order reports under the id of the amend. The ids of the other rows are those of their
-- orders, where they are unique.
CREATE UNIQUE INDEX outbox_amends ON outbox_orders (venue_client_order_id) WHERE kind = 'amend';
-- Unfinished rows only, so that finished rows do not slow a claim down. A queued row is due at once and is read in
-- journal order; a failed row waits for its time. One index over both statuses would sort the whole backlog for
-- each claim.
CREATE INDEX outbox_queued ON outbox_orders (seq) WHERE status = 'queued';
CREATE INDEX outbox_failed ON outbox_orders (next_attempt_at) WHERE status = 'failed';
-- Which lanes have a queue: a new order of such a lane is not sent before those that wait.
CREATE INDEX outbox_waiting ON outbox_orders (lane) WHERE status IN ('queued', 'failed') AND kind = 'new';
CREATE INDEX outbox_open ON outbox_orders (status, order_id, kind, number) WHERE status IN ('sending', 'uncertain');

-- Which workers run and which lanes they own. These two tables are not derived from the journal.
CREATE TABLE outbox_workers (
    worker text COLLATE "C" PRIMARY KEY,
    lock_key bigint NOT NULL, -- of the advisory lock that the worker holds while its session lives
    beat bigint NOT NULL, -- counts the worker's calls of `hold_lanes`
    declared jsonb NOT NULL -- what the worker's settings say of each venue: text by name
);
-- The worker that holds the one session of a venue that admits no second one; attempts of others are conflicts.
CREATE TABLE venue_sessions (
    venue text COLLATE "C" PRIMARY KEY,
    worker text COLLATE "C" NOT NULL
);
-- A lane has one owner, so that first attempts of one account and symbol are sent in journal order.
CREATE TABLE outbox_lanes (
    lane smallint PRIMARY KEY,
    worker text COLLATE "C"
);
INSERT INTO outbox_lanes (lane) SELECT generate_series(0, 63); -- LANES in domain/orders/outbox.py

-- The time of the running processes, for a process that starts (`StoredTime`). Not derived from the journal either; one
-- row at most.
CREATE TABLE steady_clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ahead interval NOT NULL, -- of the wall clock, at `written_at`
    written_at timestamptz NOT NULL,
    boot_id text,
    boot_seconds double precision NOT NULL,
    jumped_at timestamptz,
    stepped_ahead interval NOT NULL
);

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
    currency text COLLATE "C",
    multiplier numeric NOT NULL,
    day date, -- the trading day of the last fill
    day_pnl numeric NOT NULL,
    PRIMARY KEY (account_id, symbol)
) WITH (
    -- Every fill of an account and symbol updates the same row: free space on the page keeps the updates heap-only.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02
);

-- What the open orders of an account, symbol and settlement currency reserve: the sum over the orders that have not
-- ended. Kept by `append_group` while `journal_heads.keeps_exposures` is true, otherwise empty or out of date.
CREATE TABLE exposures (
    account_id text COLLATE "C" NOT NULL,
    symbol text COLLATE "C" NOT NULL,
    currency text COLLATE "C" NOT NULL, -- '' for an instrument without one
    open_orders integer NOT NULL,
    buy_qty numeric NOT NULL,
    sell_qty numeric NOT NULL,
    notional numeric NOT NULL,
    reducing_buy_qty numeric NOT NULL, -- of orders that were reducing when they were accepted
    reducing_sell_qty numeric NOT NULL,
    reducing_buys numeric NOT NULL, -- their notional
    reducing_sells numeric NOT NULL,
    accepted bigint NOT NULL, -- orders that were accepted since the totals are kept; never decreases
    PRIMARY KEY (account_id, symbol, currency)
) WITH (
    -- As for positions: the same row is updated by every group.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02
);

-- An upper bound of the orders of an account's window: those with an id from `since` on are at most the account's
-- `exposures.accepted` less `earlier`. Written when the bound does not suffice and the orders are counted.
CREATE TABLE order_windows (
    account_id text COLLATE "C" PRIMARY KEY,
    since text COLLATE "C" NOT NULL,
    earlier bigint NOT NULL -- below zero while the window has orders from before the totals were kept
);

-- What the claims of a group add to the totals of an account, symbol and currency, with their strictest limits: `_Line` in
-- adapters/postgres/append.py. An argument, not a table.
CREATE TYPE claim_line AS (
    line integer,
    purse integer,
    owner integer,
    account_id text,
    symbol text,
    currency text,
    buys numeric,
    sells numeric,
    orders integer,
    notional numeric,
    gross numeric,
    reducing_buys boolean,
    reducing_sells boolean,
    orders_max integer,
    notional_max numeric,
    position_max numeric,
    gross_max numeric,
    whole boolean,
    needs_totals boolean,
    needs_positions boolean,
    purse_notional numeric,
    purse_gross numeric,
    day date,
    purse_notional_max numeric,
    purse_gross_max numeric,
    purse_loss_max numeric,
    owner_orders integer,
    owner_orders_max integer,
    since text,
    window_max integer
);

-- A report on an unknown order has an empty order_id and keeps the client order id that the venue gave. An order that
-- is accepted later under that id was executed before and must not be sent.
CREATE TABLE executions (
    venue text COLLATE "C" NOT NULL,
    exec_id text COLLATE "C" NOT NULL,
    order_id text COLLATE "C" NOT NULL,
    stray_client_order_id text COLLATE "C",
    PRIMARY KEY (venue, exec_id)
);
CREATE INDEX executions_stray ON executions (stray_client_order_id) WHERE stray_client_order_id IS NOT NULL;

CREATE TABLE reader_cursors (
    name text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    hash text NOT NULL
);

-- One row per topic: the relay that publishes to it, and the last event up to which everything was delivered.
CREATE TABLE relays (
    topic text COLLATE "C" PRIMARY KEY,
    topic_id text NOT NULL, -- of the topic that the place is about
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    hash text NOT NULL,
    owner text NOT NULL,
    generation bigint NOT NULL, -- raised by every takeover: the fence
    beat bigint NOT NULL -- raised by every renewal
);

CREATE TABLE kills (
    kill_id text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C", -- NULL here and in the next three columns: any
    strategy text,
    venue text,
    symbol text,
    mode text NOT NULL,
    set_by text NOT NULL,
    set_reason text NOT NULL,
    set_at timestamptz NOT NULL,
    version integer NOT NULL,
    cleared_by text,
    cleared_reason text,
    cleared_at timestamptz,
    seq bigint NOT NULL -- the journal number of the event that set it
);
CREATE INDEX kills_active ON kills (seq) WHERE cleared_at IS NULL;

-- The orders that were open, and covered, when a kill was set.
CREATE TABLE kill_orders (
    kill_id text COLLATE "C" NOT NULL,
    order_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (kill_id, order_id)
);

-- The outcomes of recent groups, so that a repeated group id gets the same answer.
CREATE TABLE append_groups (
    group_id text COLLATE "C" PRIMARY KEY,
    seq_before bigint NOT NULL,
    conflicts integer[] NOT NULL,
    taken json,
    killed json,
    breaches json,
    recorded_at timestamptz NOT NULL
);
CREATE INDEX append_groups_by_age ON append_groups (recorded_at);

-- PDCA: the registry of strategies and the queue of rechecks. Not derived from the journal, and no part of a rebuild.
CREATE TABLE pdca_place ( -- one row: the last event that was looked through for strategies
    one integer PRIMARY KEY CHECK (one = 1),
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    hash text NOT NULL
);
INSERT INTO pdca_place VALUES (1, 1, 0, repeat('0', 64));
CREATE TABLE pdca_strategies (
    tenant text COLLATE "C" NOT NULL, -- `account:<id>`, or `client:<id>` for one that a client without accounts registered
    strategy_id text COLLATE "C" NOT NULL,
    registered boolean NOT NULL, -- by a person or a client; otherwise only an order has named it
    owner text COLLATE "C",
    health text COLLATE "C" NOT NULL,
    health_rank integer NOT NULL, -- the order of the healths
    last_checked_at timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    search text COLLATE "C" NOT NULL, -- id and owner, folded
    body text NOT NULL, -- the whole Strategy as JSON
    PRIMARY KEY (strategy_id, tenant)
);
CREATE INDEX pdca_strategies_of_tenant ON pdca_strategies (tenant, registered);
CREATE TABLE pdca_strategy_tags (
    tenant text COLLATE "C" NOT NULL,
    strategy_id text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    PRIMARY KEY (strategy_id, tenant, tag),
    FOREIGN KEY (strategy_id, tenant) REFERENCES pdca_strategies (strategy_id, tenant) ON DELETE CASCADE
);
CREATE TABLE pdca_requests (
    request_id text COLLATE "C" PRIMARY KEY,
    client_id text COLLATE "C" NOT NULL,
    caller text COLLATE "C" NOT NULL, -- the digest of the tenants of the client's token; `*` for all
    operation text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    digest text NOT NULL,
    runner text COLLATE "C" NOT NULL,
    batch integer NOT NULL, -- the batch whose turn it is
    submitted_at timestamptz, -- when the runner took it
    started_at timestamptz,
    finished_at timestamptz,
    run text NOT NULL, -- the RunnerInfo as JSON
    body text NOT NULL, -- the RecheckRequest as JSON
    UNIQUE (client_id, caller, operation, idempotency_key)
);
CREATE INDEX pdca_requests_open ON pdca_requests (runner, request_id) WHERE finished_at IS NULL;
CREATE INDEX pdca_requests_ended ON pdca_requests (finished_at) WHERE finished_at IS NOT NULL;
CREATE TABLE pdca_items (
    request_id text COLLATE "C" NOT NULL REFERENCES pdca_requests ON DELETE CASCADE,
    number integer NOT NULL, -- from 0
    batch integer NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    strategy_id text COLLATE "C" NOT NULL,
    strategy_created_at timestamptz NOT NULL, -- tells it from one that is registered again after it was deleted
    state text COLLATE "C" NOT NULL,
    generation integer NOT NULL, -- of the claim: an earlier one can end nothing
    attempts integer NOT NULL,
    worker text,
    lease_until timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    outcome text, -- the ItemResult or ItemError as JSON
    artifacts text NOT NULL, -- what is known of its artifacts, as JSON
    caller text COLLATE "C", -- that of the request, once the batch has begun
    queue_position bigint, -- the lowest is claimed first; only of items whose batch has begun, until they end
    PRIMARY KEY (request_id, number),
    UNIQUE (request_id, strategy_id, tenant)
);
CREATE INDEX pdca_items_open ON pdca_items (request_id, batch, number) WHERE state IN ('queued', 'running');
CREATE INDEX pdca_items_queue ON pdca_items (queue_position, request_id, number) WHERE queue_position IS NOT NULL;
CREATE INDEX pdca_items_of_caller ON pdca_items (caller, queue_position) WHERE queue_position IS NOT NULL;
CREATE INDEX pdca_items_states ON pdca_items (request_id, state);
CREATE TABLE pdca_artifacts (
    request_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    strategy_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    media_type text NOT NULL,
    sha256 text NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (request_id, strategy_id, name, tenant),
    FOREIGN KEY (request_id, strategy_id, tenant) REFERENCES pdca_items (request_id, strategy_id, tenant)
        ON DELETE CASCADE
);
CREATE TABLE pdca_tally ( -- all items that have ever ended, those of removed requests too
    outcome text COLLATE "C" PRIMARY KEY,
    items bigint NOT NULL
);
INSERT INTO pdca_tally VALUES ('succeeded', 0), ('failed', 0);
