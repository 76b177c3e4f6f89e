-- A report on an order that nobody knew is filed under the id that the venue gave: an order that turns up under it later
-- was executed before, and must not be sent.
ALTER TABLE executions ADD COLUMN stray_client_order_id text COLLATE "C";
CREATE INDEX executions_stray ON executions (stray_client_order_id) WHERE stray_client_order_id IS NOT NULL;
