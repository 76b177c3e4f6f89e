-- Which orders have ended, and the table of those that have not (ADR 41).

-- As in domain/orders/lifecycle.py.
CREATE OR REPLACE FUNCTION is_final(status text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN status IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED');

-- Orders that are missing among the unfinished ones, wrongly there, or there with another account or venue; a page of them.
CREATE OR REPLACE FUNCTION wrong_unfinished_orders() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT order_id
    FROM (SELECT order_id, account_id, venue FROM orders WHERE NOT is_final(status)) AS own
    FULL JOIN unfinished_orders AS listed USING (order_id)
    WHERE (own.account_id, own.venue) IS DISTINCT FROM (listed.account_id, listed.venue)
    ORDER BY order_id LIMIT 1000
$$;

-- Fill the table again from the orders, while no append is under way.
CREATE OR REPLACE FUNCTION set_unfinished_orders() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM journal_heads FOR UPDATE;
    DELETE FROM unfinished_orders;
    INSERT INTO unfinished_orders (order_id, account_id, venue)
    SELECT order_id, account_id, venue FROM orders WHERE NOT is_final(status);
END $$;
