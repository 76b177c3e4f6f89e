-- Orders of one account and symbol share a lane. Rows from before keep to one lane of their own.
ALTER TABLE outbox_orders ADD COLUMN lane INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox_orders ADD COLUMN error_detail TEXT;
