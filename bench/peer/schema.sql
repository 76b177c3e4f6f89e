-- The same four rows per order that Switchyard writes.

CREATE TABLE idempotency (
    account_id text NOT NULL,
    key text NOT NULL,
    body_digest bytea NOT NULL,
    order_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, key)
);

CREATE TABLE orders (
    order_id text PRIMARY KEY,
    account_id text NOT NULL,
    symbol text NOT NULL,
    side text NOT NULL,
    type text NOT NULL,
    time_in_force text NOT NULL,
    qty numeric NOT NULL,
    price numeric,
    strategy text,
    status text NOT NULL,
    venue_order_id text,
    filled_qty numeric,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id text NOT NULL UNIQUE,
    status text NOT NULL DEFAULT 'queued',
    next_attempt_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX outbox_due ON outbox (next_attempt_at) WHERE status = 'queued';

CREATE TABLE events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type text NOT NULL,
    account_id text NOT NULL,
    order_id text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    data jsonb NOT NULL
);
