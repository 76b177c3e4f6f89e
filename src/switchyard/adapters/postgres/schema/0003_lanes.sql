-- First attempts of one account and symbol leave in the order of acceptance, because they share a lane and a lane has one
-- owner among the workers. Rows from before keep to one lane of their own.
ALTER TABLE outbox_orders ADD COLUMN lane smallint NOT NULL DEFAULT 0;
ALTER TABLE outbox_orders ADD COLUMN error_detail text;

-- Not part of the journal's facts: who is at work, and on what, is forgotten with the worker.
CREATE TABLE outbox_workers (
    worker text COLLATE "C" PRIMARY KEY,
    lock_key bigint NOT NULL, -- of the advisory lock that proves the worker alive
    seen_at timestamptz NOT NULL
);
CREATE TABLE outbox_lanes (
    lane smallint PRIMARY KEY,
    worker text COLLATE "C"
);
INSERT INTO outbox_lanes SELECT generate_series(0, 63);
