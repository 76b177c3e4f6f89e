-- An order is written several times within moments. With room on its page and no index on what changes, the new version
-- stays beside the old one and no index hears of it. An index whose condition names `status` would hear of every change,
-- so the open orders are found among the unfinished ones: those change sides once.
ALTER TABLE orders SET (fillfactor = 50);
DROP INDEX orders_open;
ALTER TABLE orders ADD COLUMN is_final boolean NOT NULL
    GENERATED ALWAYS AS (status IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED')) STORED;
CREATE INDEX orders_unfinished ON orders (venue, order_id) WHERE NOT is_final;
