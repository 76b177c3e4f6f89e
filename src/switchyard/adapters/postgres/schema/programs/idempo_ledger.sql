-- The idempotency keys under the table name of their specification, for operators and dashboards. A key is unique
-- within its account and operation. PostgreSQL accepts writes to a view over one table only: the empty subquery makes
-- this view read-only, and costs nothing.
DROP VIEW IF EXISTS idempo_ledger;
CREATE VIEW idempo_ledger AS
SELECT
    idempotency_key, request_digest, status, http_status, response_payload_json, result_digest, created_at, expires_at,
    account_id, operation, generation, order_id
FROM idempotency_keys CROSS JOIN (SELECT) AS read_only;
