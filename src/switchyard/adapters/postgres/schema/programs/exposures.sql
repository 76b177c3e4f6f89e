-- The totals that limits are checked against; `domain/risk/exposure.py` has the same rules. Every function here is called
-- by `append_group`, which holds the lock of the shard.

-- The part of one order in its totals; no row for an order that has ended.
CREATE OR REPLACE FUNCTION reserved(of_order orders) RETURNS TABLE (rest numeric, notional numeric)
LANGUAGE sql IMMUTABLE ROWS 1 AS $$
    -- While an amend is not settled, the venue may have either amounts: the larger ones count.
    SELECT greatest(open.rest, open.amended, 0), greatest(
        open.rest * of_order.reserve_price * of_order.multiplier,
        open.amended * of_order.amend_reserve_price * of_order.multiplier, 0
    )
    FROM (SELECT of_order.qty - of_order.filled_qty AS rest, of_order.amend_qty - of_order.filled_qty AS amended) AS open
    WHERE of_order.status NOT IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED')
$$;

-- Compute the totals from the orders, once, when the first claim comes; a database without limits does not keep them.
CREATE OR REPLACE FUNCTION start_exposures(of_shard integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM exposures;
    DELETE FROM order_windows;
    INSERT INTO exposures SELECT * FROM summed_exposures(NULL);
    UPDATE journal_heads SET keeps_exposures = true WHERE shard = of_shard;
END $$;

-- The totals as the sum over the orders that have not ended, of one account or of all (NULL).
CREATE OR REPLACE FUNCTION summed_exposures(of_account text) RETURNS SETOF exposures LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT
        orders.account_id, orders.symbol, coalesce(orders.currency, ''), count(*)::integer,
        coalesce(sum(part.rest) FILTER (WHERE orders.side = 'BUY'), 0),
        coalesce(sum(part.rest) FILTER (WHERE orders.side = 'SELL'), 0),
        sum(part.notional),
        coalesce(sum(part.rest) FILTER (WHERE orders.reducing AND orders.side = 'BUY'), 0),
        coalesce(sum(part.rest) FILTER (WHERE orders.reducing AND orders.side = 'SELL'), 0),
        coalesce(sum(part.notional) FILTER (WHERE orders.reducing AND orders.side = 'BUY'), 0),
        coalesce(sum(part.notional) FILTER (WHERE orders.reducing AND orders.side = 'SELL'), 0),
        0::bigint
    FROM unfinished_orders AS open
    CROSS JOIN LATERAL (SELECT * FROM orders AS own WHERE own.order_id = open.order_id LIMIT 1) AS orders
    CROSS JOIN LATERAL reserved(orders::orders) AS part
    WHERE of_account IS NULL OR open.account_id = of_account
    GROUP BY 1, 2, 3;
END $$;

-- Add to the totals what the orders of a group change in them. Called before the orders are written.
CREATE OR REPLACE FUNCTION move_exposures(
    incoming_orders orders[], order_changes integer[], order_bases integer[], conflicts integer[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO exposures AS held (
        account_id, symbol, currency, open_orders, buy_qty, sell_qty, notional, reducing_buy_qty, reducing_sell_qty,
        reducing_buys, reducing_sells, accepted
    )
    SELECT * FROM (
    SELECT
        moved.account_id, moved.symbol, coalesce(moved.currency, '') AS currency, sum(sign) AS open_orders,
        coalesce(sum(sign * rest) FILTER (WHERE side = 'BUY'), 0) AS buy_qty,
        coalesce(sum(sign * rest) FILTER (WHERE side = 'SELL'), 0) AS sell_qty,
        coalesce(sum(sign * part_notional), 0) AS notional,
        coalesce(sum(sign * rest) FILTER (WHERE reducing AND side = 'BUY'), 0) AS reducing_buy_qty,
        coalesce(sum(sign * rest) FILTER (WHERE reducing AND side = 'SELL'), 0) AS reducing_sell_qty,
        coalesce(sum(sign * part_notional) FILTER (WHERE reducing AND side = 'BUY'), 0) AS reducing_buys,
        coalesce(sum(sign * part_notional) FILTER (WHERE reducing AND side = 'SELL'), 0) AS reducing_sells,
        sum(accepted) AS accepted
    FROM (
        SELECT
            CASE WHEN part.rest IS NULL THEN 0 ELSE 1 END AS sign,
            incoming.account_id, incoming.symbol, incoming.currency, incoming.side, incoming.reducing,
            part.rest, part.notional AS part_notional,
            CASE WHEN order_bases[incoming.ordinality] = 0 THEN 1 ELSE 0 END AS accepted
        FROM unnest(incoming_orders) WITH ORDINALITY AS incoming
        LEFT JOIN LATERAL (
            SELECT greatest(incoming.qty - incoming.filled_qty, incoming.amend_qty - incoming.filled_qty, 0) AS rest,
                greatest(
                    (incoming.qty - incoming.filled_qty) * incoming.reserve_price * incoming.multiplier,
                    (incoming.amend_qty - incoming.filled_qty) * incoming.amend_reserve_price * incoming.multiplier, 0
                ) AS notional
            WHERE incoming.status NOT IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED')
        ) AS part ON true
        WHERE order_changes[incoming.ordinality] <> ALL (conflicts)
        AND (part.rest IS NOT NULL OR (order_bases[incoming.ordinality] = 0 AND incoming.version > 1))
        UNION ALL
        SELECT -1, stored.account_id, stored.symbol, stored.currency, stored.side, stored.reducing,
            stored.rest, stored.part_notional, 0
        FROM unnest(incoming_orders) WITH ORDINALITY AS incoming CROSS JOIN LATERAL (
            SELECT before.account_id, before.symbol, before.currency, before.side, before.reducing,
                part.rest, part.notional AS part_notional
            FROM orders AS before CROSS JOIN LATERAL reserved(before) AS part
            WHERE before.order_id = incoming.order_id LIMIT 1
        ) AS stored
        WHERE order_bases[incoming.ordinality] > 0 AND order_changes[incoming.ordinality] <> ALL (conflicts)
    ) AS moved
    GROUP BY 1, 2, 3
    ) AS delta
    -- Most steps of an order change nothing here.
    WHERE (open_orders, buy_qty, sell_qty, notional, accepted) <> (0, 0, 0, 0, 0)
    ON CONFLICT (account_id, symbol, currency) DO UPDATE SET
        open_orders = held.open_orders + excluded.open_orders,
        buy_qty = held.buy_qty + excluded.buy_qty,
        sell_qty = held.sell_qty + excluded.sell_qty,
        notional = held.notional + excluded.notional,
        reducing_buy_qty = held.reducing_buy_qty + excluded.reducing_buy_qty,
        reducing_sell_qty = held.reducing_sell_qty + excluded.reducing_sell_qty,
        reducing_buys = held.reducing_buys + excluded.reducing_buys,
        reducing_sells = held.reducing_sells + excluded.reducing_sells,
        accepted = held.accepted + excluded.accepted;
END $$;

-- What open orders add to the gross exposure: reducing ones only what they may open by now, because the position that they
-- would reduce may have been closed by others.
CREATE OR REPLACE FUNCTION opened(of_totals exposures) RETURNS numeric LANGUAGE plpgsql STABLE AS $$
DECLARE
    held numeric;
    cost numeric;
    worst numeric;
BEGIN
    IF of_totals.reducing_buy_qty = 0 AND of_totals.reducing_sell_qty = 0 THEN
        RETURN of_totals.notional;
    END IF;
    SELECT stored.qty,
        CASE WHEN coalesce(stored.currency, '') = of_totals.currency
            THEN stored.cost_basis * stored.multiplier ELSE 0 END
    INTO held, cost
    FROM positions AS stored WHERE (stored.account_id, stored.symbol) = (of_totals.account_id, of_totals.symbol);
    held := coalesce(held, 0);
    cost := coalesce(cost, 0);
    worst := abs(cost);
    IF of_totals.reducing_buy_qty > greatest(-held, 0) THEN
        worst := greatest(worst, abs(cost + of_totals.reducing_buys));
    END IF;
    IF of_totals.reducing_sell_qty > greatest(held, 0) THEN
        worst := greatest(worst, abs(cost - of_totals.reducing_sells));
    END IF;
    RETURN of_totals.notional - of_totals.reducing_buys - of_totals.reducing_sells + worst - abs(cost);
END $$;

-- The totals of one account, whether they are kept or not.
CREATE OR REPLACE FUNCTION account_exposures(of_account text) RETURNS SETOF exposures LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF (SELECT bool_or(keeps_exposures) FROM journal_heads) THEN
        RETURN QUERY SELECT * FROM exposures WHERE exposures.account_id = of_account;
    ELSE
        RETURN QUERY SELECT * FROM summed_exposures(of_account);
    END IF;
END $$;

-- The kept totals that are not the sums over the orders; none while they are not kept.
CREATE OR REPLACE FUNCTION wrong_exposures() RETURNS TABLE (account_id text, symbol text, currency text)
LANGUAGE sql STABLE AS $$
    SELECT key.account_id, key.symbol, key.currency
    FROM (SELECT * FROM exposures WHERE open_orders <> 0 OR (buy_qty, sell_qty, notional) <> (0, 0, 0)) AS kept
    FULL JOIN summed_exposures(NULL) AS summed
        ON (kept.account_id, kept.symbol, kept.currency) = (summed.account_id, summed.symbol, summed.currency)
    CROSS JOIN LATERAL (
        SELECT coalesce(kept.account_id, summed.account_id) AS account_id, coalesce(kept.symbol, summed.symbol) AS symbol,
            coalesce(kept.currency, summed.currency) AS currency
    ) AS key
    WHERE (SELECT bool_or(keeps_exposures) FROM journal_heads)
    AND (kept.open_orders, kept.buy_qty, kept.sell_qty, kept.notional, kept.reducing_buy_qty, kept.reducing_sell_qty,
        kept.reducing_buys, kept.reducing_sells) IS DISTINCT FROM
        (summed.open_orders, summed.buy_qty, summed.sell_qty, summed.notional, summed.reducing_buy_qty,
        summed.reducing_sell_qty, summed.reducing_buys, summed.reducing_sells)
    ORDER BY 1, 2, 3
$$;
