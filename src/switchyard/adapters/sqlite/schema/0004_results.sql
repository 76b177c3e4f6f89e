-- The ledger also keeps a final answer, and counts its own versions: a key may begin anew after its row was reaped, when
-- its generation is not the first.
ALTER TABLE idempo_ledger ADD COLUMN status TEXT NOT NULL DEFAULT 'accepted';
ALTER TABLE idempo_ledger ADD COLUMN http_status INTEGER;
ALTER TABLE idempo_ledger ADD COLUMN response_payload_json TEXT;
ALTER TABLE idempo_ledger ADD COLUMN result_digest TEXT;
ALTER TABLE idempo_ledger ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
UPDATE idempo_ledger SET version = generation + 1 WHERE generation > 0;
