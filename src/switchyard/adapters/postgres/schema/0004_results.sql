-- The ledger also keeps a final answer, and counts its own versions: a key may begin anew after its row was reaped, when
-- its generation is not the first.
ALTER TABLE idempo_ledger ADD COLUMN status text NOT NULL DEFAULT 'accepted';
ALTER TABLE idempo_ledger ADD COLUMN http_status integer;
ALTER TABLE idempo_ledger ADD COLUMN response_payload_json text;
ALTER TABLE idempo_ledger ADD COLUMN result_digest text;
ALTER TABLE idempo_ledger ADD COLUMN version integer NOT NULL DEFAULT 1;
UPDATE idempo_ledger SET version = generation + 1 WHERE generation > 0;
