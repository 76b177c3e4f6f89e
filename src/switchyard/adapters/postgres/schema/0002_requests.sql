-- An order keeps what is known of its request: the caller's trace id and time, and the idempotency key, whose row gets the
-- order's result in the commit that ends the order.
ALTER TABLE orders ADD COLUMN trace_id text;
ALTER TABLE orders ADD COLUMN requested_at timestamptz;
ALTER TABLE orders ADD COLUMN operation text;
ALTER TABLE orders ADD COLUMN idempotency_key text;

-- It gets two more parameters; programs/append.sql creates it again.
DROP FUNCTION IF EXISTS append_group;
