-- An order keeps what is known of its request: the caller's trace id and time, and the idempotency key, whose row gets the
-- order's result in the commit that ends the order.
ALTER TABLE orders ADD COLUMN trace_id TEXT;
ALTER TABLE orders ADD COLUMN requested_at TEXT;
ALTER TABLE orders ADD COLUMN operation TEXT;
ALTER TABLE orders ADD COLUMN idempotency_key TEXT;
