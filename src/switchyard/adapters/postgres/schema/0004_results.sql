-- The key store also keeps a final answer, and counts its own versions: a key may begin anew after its row was reaped, when
-- its generation is not the first.
ALTER TABLE idempotency_keys ADD COLUMN status text NOT NULL DEFAULT 'accepted';
ALTER TABLE idempotency_keys ADD COLUMN http_status integer;
ALTER TABLE idempotency_keys ADD COLUMN response_payload_json text;
ALTER TABLE idempotency_keys ADD COLUMN result_digest text;
ALTER TABLE idempotency_keys ADD COLUMN version integer NOT NULL DEFAULT 1;
UPDATE idempotency_keys SET version = generation + 1 WHERE generation > 0;
