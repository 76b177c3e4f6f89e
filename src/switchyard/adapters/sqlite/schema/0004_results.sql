-- The key store also keeps a final answer, and counts its own versions: a key may begin anew after its row was reaped, when
-- its generation is not the first.
ALTER TABLE idempotency_keys ADD COLUMN status TEXT NOT NULL DEFAULT 'accepted';
ALTER TABLE idempotency_keys ADD COLUMN http_status INTEGER;
ALTER TABLE idempotency_keys ADD COLUMN response_payload_json TEXT;
ALTER TABLE idempotency_keys ADD COLUMN result_digest TEXT;
ALTER TABLE idempotency_keys ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
UPDATE idempotency_keys SET version = generation + 1 WHERE generation > 0;
