-- The check of the limits that new orders claim to keep (`breach_of` in domain/risk/exposure.py is the same for the other
-- engines). Returns {change: [reason, reached, allowed, of symbol]} of the claims that would breach one, or NULL where the
-- sums of all claims fit.
--
-- `claim_lines` has what all claims of the group add to the totals of an account, symbol and currency, with their
-- strictest limits. The first line of an account and currency also has the sums and limits of its `purse`, and the first
-- line of an account those of its `owner`. If even these sums fit, every claim does, whatever the order: that is the
-- usual case.
--
-- With `reserves`, sums that fit are added to the totals at once.
CREATE OR REPLACE FUNCTION breached_claims(
    claim_lines claim_line[], claim_rows text, claim_limits text, conflicts integer[], reserves boolean
) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    IF claims_fit(claim_lines, reserves)
        OR (counted_windows(claim_lines) > 0 AND claims_fit(claim_lines, reserves))
    THEN
        RETURN NULL;
    END IF;
    RETURN judged_in_order(claim_lines, claim_rows, claim_limits, conflicts);
END $$;

-- Quantities are over all currencies of a symbol, money is in one. Rows of the whole account, from the lowest symbol to
-- '~', which is above all, are read only where one of its limits needs them.
CREATE OR REPLACE FUNCTION claims_fit(claim_lines claim_line[], reserves boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    is_fitting boolean;
BEGIN
    WITH key AS MATERIALIZED (
        SELECT * FROM unnest(claim_lines)
    ),
    judged AS MATERIALIZED (
        SELECT bool_and(coalesce(
            total.orders + coalesce(key.orders, 0) <= coalesce(key.orders_max, 2147483647)
            AND total.notional + coalesce(key.notional, 0) <= coalesce(key.notional_max, 'Infinity')
            AND (key.gross_max IS NULL OR total.gross + held.cost + coalesce(key.gross, key.notional, 0) <= key.gross_max)
            -- An order whose side may still cross zero is judged alone.
            AND (key.position_max IS NULL OR (
                (key.buys IS NULL OR (held.qty + total.buys >= 0 AND held.qty + total.buys + key.buys <= key.position_max))
                AND (key.sells IS NULL
                    OR (total.sells - held.qty >= 0 AND total.sells - held.qty + key.sells <= key.position_max))
            ))
            AND (key.reducing_buys IS NULL OR (held.qty < 0 AND held.qty + total.buys + key.buys <= 0))
            AND (key.reducing_sells IS NULL OR (held.qty > 0 AND total.sells - held.qty + key.sells <= 0))
            AND key.whole IS NULL
            AND (key.owner_orders_max IS NULL
                OR total.owner_orders + coalesce(key.owner_orders, key.orders, 0) <= key.owner_orders_max)
            AND (key.purse_notional_max IS NULL
                OR total.purse_notional + coalesce(key.purse_notional, key.notional, 0) <= key.purse_notional_max)
            AND (key.purse_gross_max IS NULL
                OR total.purse_gross + held.purse_cost + coalesce(key.purse_gross, key.gross, key.notional, 0)
                    <= key.purse_gross_max)
            AND (key.purse_loss_max IS NULL OR held.purse_loss < key.purse_loss_max)
            AND (key.window_max IS NULL OR total.owner_accepted + coalesce(key.owner_orders, key.orders, 0) - (
                SELECT stored.earlier FROM order_windows AS stored
                WHERE stored.account_id = key.account_id AND stored.since <= key.since
            ) <= key.window_max),
            false
        )) AS fits
        FROM key
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(stored.qty) FILTER (WHERE stored.symbol = key.symbol), 0) AS qty,
                coalesce(sum(stored.cost) FILTER (WHERE stored.symbol = key.symbol), 0) AS cost,
                coalesce(sum(stored.cost), 0) AS purse_cost,
                coalesce(-sum(stored.pnl), 0) AS purse_loss
            FROM (
                SELECT mine.symbol, mine.qty,
                    CASE WHEN coalesce(mine.currency, '') = key.currency
                        THEN abs(mine.cost_basis) * mine.multiplier END AS cost,
                    CASE WHEN coalesce(mine.currency, '') = key.currency AND mine.day = key.day
                        THEN mine.day_pnl * mine.multiplier END AS pnl
                FROM positions AS mine
                WHERE mine.account_id = key.account_id AND mine.symbol <> '*'
                AND mine.symbol >= CASE WHEN key.needs_positions THEN '' ELSE key.symbol END
                AND mine.symbol <= CASE WHEN key.needs_positions THEN '~' ELSE key.symbol END
            ) AS stored
        ) AS held
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(stored.buy_qty) FILTER (WHERE stored.symbol = key.symbol), 0) AS buys,
                coalesce(sum(stored.sell_qty) FILTER (WHERE stored.symbol = key.symbol), 0) AS sells,
                coalesce(sum(stored.open_orders) FILTER (WHERE stored.symbol = key.symbol), 0) AS orders,
                coalesce(sum(stored.notional)
                    FILTER (WHERE (stored.symbol, stored.currency) = (key.symbol, key.currency)), 0) AS notional,
                coalesce(sum(stored.opened)
                    FILTER (WHERE (stored.symbol, stored.currency) = (key.symbol, key.currency)), 0) AS gross,
                coalesce(sum(stored.open_orders), 0) AS owner_orders,
                coalesce(sum(stored.notional) FILTER (WHERE stored.currency = key.currency), 0) AS purse_notional,
                coalesce(sum(stored.opened) FILTER (WHERE stored.currency = key.currency), 0) AS purse_gross,
                coalesce(sum(stored.accepted), 0) AS owner_accepted
            FROM (
                SELECT mine.*,
                    CASE WHEN mine.reducing_buys = 0 AND mine.reducing_sells = 0 THEN mine.notional
                        ELSE opened(mine) END AS opened
                FROM exposures AS mine
                WHERE mine.account_id = key.account_id
                AND mine.symbol >= CASE WHEN key.needs_totals THEN '' ELSE key.symbol END
                AND mine.symbol <= CASE WHEN key.needs_totals THEN '~' ELSE key.symbol END
            ) AS stored
        ) AS total
    ),
    reserved AS (
        INSERT INTO exposures AS held (
            account_id, symbol, currency, open_orders, buy_qty, sell_qty, notional, reducing_buy_qty,
            reducing_sell_qty, reducing_buys, reducing_sells, accepted
        )
        SELECT key.account_id, key.symbol, key.currency, key.orders, coalesce(key.buys, 0), coalesce(key.sells, 0),
            coalesce(key.notional, 0), 0, 0, 0, 0, key.orders
        FROM key, judged WHERE reserves AND judged.fits
        ON CONFLICT (account_id, symbol, currency) DO UPDATE SET
            open_orders = held.open_orders + excluded.open_orders,
            buy_qty = held.buy_qty + excluded.buy_qty,
            sell_qty = held.sell_qty + excluded.sell_qty,
            notional = held.notional + excluded.notional,
            accepted = held.accepted + excluded.accepted
    )
    SELECT judged.fits INTO is_fitting FROM judged;
    RETURN is_fitting;
END $$;

-- Count the orders of the windows whose upper bound does not fit, so that the bound is exact; returns how many.
CREATE OR REPLACE FUNCTION counted_windows(claim_lines claim_line[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    counted integer;
BEGIN
    INSERT INTO order_windows (account_id, since, earlier)
    SELECT key.account_id, key.since, total.accepted - recent_orders(key.account_id, key.since)
    FROM unnest(claim_lines) AS key
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(stored.accepted), 0) AS accepted FROM exposures AS stored
        WHERE stored.account_id = key.account_id
    ) AS total
    LEFT JOIN order_windows AS held ON held.account_id = key.account_id AND held.since <= key.since
    WHERE coalesce(
        total.accepted - held.earlier + coalesce(key.owner_orders, key.orders, 0) > key.window_max,
        key.window_max IS NOT NULL
    )
    ON CONFLICT (account_id) DO UPDATE SET since = excluded.since, earlier = excluded.earlier;
    GET DIAGNOSTICS counted = ROW_COUNT;
    RETURN counted;
END $$;

CREATE OR REPLACE FUNCTION recent_orders(of_account text, since text) RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT FROM orders AS stored
            WHERE stored.account_id = of_account AND stored.order_id >= since
            AND NOT (stored.version = 1 AND stored.status = 'REJECTED')
            LIMIT 10000 -- WINDOW_ORDERS_MAX in domain/risk/claims.py
        ) AS page
    );
END $$;

-- Judge the claims of a group one after the other, each on the totals and the claims before it.
CREATE OR REPLACE FUNCTION judged_in_order(
    claim_lines claim_line[], claim_rows text, claim_limits text, conflicts integer[]
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    breaches jsonb := '{}';
    claim record;
    held numeric[];
    buys numeric[];
    sells numeric[];
    line_orders integer[];
    line_notional numeric[];
    line_gross numeric[];
    purse_notional numeric[];
    purse_gross numeric[];
    purse_loss numeric[];
    owner_orders integer[];
    owner_recent integer[];
    open_qty numeric;
    worst numeric;
    signed numeric;
    breach jsonb;
BEGIN
    SELECT array_agg(coalesce(mine.qty, 0) ORDER BY line),
        array_agg(coalesce(total.buys, 0) ORDER BY line), array_agg(coalesce(total.sells, 0) ORDER BY line),
        array_agg(coalesce(total.orders, 0) ORDER BY line), array_agg(coalesce(total.notional, 0) ORDER BY line),
        array_agg(coalesce(total.gross, 0) + coalesce(mine.cost, 0) ORDER BY line)
    INTO held, buys, sells, line_orders, line_notional, line_gross
    FROM unnest(claim_lines) AS key
    LEFT JOIN LATERAL (
        SELECT stored.qty,
            CASE WHEN coalesce(stored.currency, '') = key.currency THEN abs(stored.cost_basis) * stored.multiplier END
                AS cost
        FROM positions AS stored WHERE (stored.account_id, stored.symbol) = (key.account_id, key.symbol) LIMIT 1
    ) AS mine ON true
    LEFT JOIN LATERAL (
        SELECT sum(stored.buy_qty) AS buys, sum(stored.sell_qty) AS sells, sum(stored.open_orders)::integer AS orders,
            sum(stored.notional) FILTER (WHERE stored.currency = key.currency) AS notional,
            sum(opened(stored)) FILTER (WHERE stored.currency = key.currency) AS gross
        FROM exposures AS stored WHERE (stored.account_id, stored.symbol) = (key.account_id, key.symbol)
    ) AS total ON true;

    SELECT array_agg(coalesce(total.notional, 0) ORDER BY purse),
        array_agg(coalesce(total.gross, 0) + coalesce(result.cost, 0) ORDER BY purse),
        array_agg(coalesce(result.loss, 0) ORDER BY purse)
    INTO purse_notional, purse_gross, purse_loss
    FROM (
        SELECT sent.purse, sent.account_id, sent.currency, max(sent.day) AS day
        FROM unnest(claim_lines) AS sent
        GROUP BY 1, 2, 3
    ) AS key
    LEFT JOIN LATERAL (
        SELECT sum(stored.notional) AS notional, sum(opened(stored)) AS gross
        FROM exposures AS stored WHERE stored.account_id = key.account_id AND stored.currency = key.currency
    ) AS total ON true
    LEFT JOIN LATERAL (
        SELECT sum(abs(stored.cost_basis) * stored.multiplier) AS cost,
            -sum(stored.day_pnl * stored.multiplier) FILTER (WHERE stored.day = key.day) AS loss
        FROM positions AS stored
        WHERE stored.account_id = key.account_id AND stored.symbol <> '*' AND coalesce(stored.currency, '') = key.currency
    ) AS result ON true;

    -- A bound that was not counted again leaves room for all claims of the group.
    SELECT array_agg(total.orders ORDER BY owner),
        array_agg(coalesce(total.accepted - recent.earlier, 0) ORDER BY owner)
    INTO owner_orders, owner_recent
    FROM (
        SELECT DISTINCT sent.owner, sent.account_id
        FROM unnest(claim_lines) AS sent
    ) AS key
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(stored.open_orders), 0)::integer AS orders, coalesce(sum(stored.accepted), 0) AS accepted
        FROM exposures AS stored WHERE stored.account_id = key.account_id
    ) AS total
    LEFT JOIN order_windows AS recent ON recent.account_id = key.account_id;

    FOR claim IN
        SELECT (claimed.row->>0)::integer AS change, key.line, key.purse, key.owner, claimed.row->>3 AS side,
            (claimed.row->>4)::numeric AS qty, (claimed.row->>5)::numeric AS notional,
            (claimed.row->>6)::boolean AS reducing, (claimed.row->>7)::boolean AS whole,
            (claimed.row->>8)::integer AS orders, (claimed.row->>9)::numeric AS gross, -- an amend adds no order
            (allowed.row->>0)::integer AS open_orders, (allowed.row->>1)::integer AS symbol_open_orders,
            (allowed.row->>2)::numeric AS open_notional, (allowed.row->>3)::numeric AS symbol_open_notional,
            (allowed.row->>4)::numeric AS position, (allowed.row->>5)::numeric AS gross_exposure,
            (allowed.row->>6)::numeric AS symbol_gross_exposure, (allowed.row->>7)::numeric AS daily_loss,
            (allowed.row->>8)::integer AS window_orders
        FROM json_array_elements(claim_rows::json) WITH ORDINALITY AS claimed (row, number)
        JOIN unnest(claim_lines) AS key ON key.line = (claimed.row->>1)::integer
        JOIN json_array_elements(claim_limits::json) WITH ORDINALITY AS allowed (row, number)
            ON allowed.number = (claimed.row->>2)::integer
        ORDER BY claimed.number
    LOOP
        CONTINUE WHEN claim.change = ANY (conflicts);
        IF claim.side = 'BUY' THEN
            signed := held[claim.line];
            open_qty := buys[claim.line];
        ELSE
            signed := -held[claim.line];
            open_qty := sells[claim.line];
        END IF;
        worst := signed + open_qty + claim.qty; -- above zero in the direction of the order
        breach := NULL;
        IF claim.reducing THEN
            IF signed >= 0 OR worst > 0 OR (claim.whole AND worst <> 0) THEN
                breach := jsonb_build_array('NOT_REDUCING', abs(worst), 0, true);
            END IF;
        ELSIF owner_recent[claim.owner] + 1 > claim.window_orders THEN
            breach := jsonb_build_array(
                'LIMIT_ORDERS_PER_WINDOW', owner_recent[claim.owner] + 1, claim.window_orders, false);
        ELSIF purse_loss[claim.purse] >= claim.daily_loss THEN
            breach := jsonb_build_array('LIMIT_DAILY_LOSS', purse_loss[claim.purse], claim.daily_loss, false);
        ELSIF owner_orders[claim.owner] + claim.orders > claim.open_orders THEN
            breach := jsonb_build_array(
                'LIMIT_OPEN_ORDERS', owner_orders[claim.owner] + claim.orders, claim.open_orders, false);
        ELSIF line_orders[claim.line] + claim.orders > claim.symbol_open_orders THEN
            breach := jsonb_build_array(
                'LIMIT_OPEN_ORDERS', line_orders[claim.line] + claim.orders, claim.symbol_open_orders, true);
        ELSIF (claim.orders > 0 OR claim.notional > 0)
            AND purse_notional[claim.purse] + claim.notional > claim.open_notional
        THEN
            breach := jsonb_build_array(
                'LIMIT_OPEN_NOTIONAL', purse_notional[claim.purse] + claim.notional, claim.open_notional, false);
        ELSIF (claim.orders > 0 OR claim.notional > 0)
            AND line_notional[claim.line] + claim.notional > claim.symbol_open_notional
        THEN
            breach := jsonb_build_array(
                'LIMIT_OPEN_NOTIONAL', line_notional[claim.line] + claim.notional, claim.symbol_open_notional, true);
        ELSIF claim.qty > 0 AND abs(worst) > claim.position THEN
            breach := jsonb_build_array('LIMIT_POSITION', abs(worst), claim.position, true);
        ELSIF (claim.orders > 0 OR claim.gross > 0)
            AND purse_gross[claim.purse] + claim.gross > claim.gross_exposure
        THEN
            breach := jsonb_build_array(
                'LIMIT_GROSS_EXPOSURE', purse_gross[claim.purse] + claim.gross, claim.gross_exposure, false);
        ELSIF (claim.orders > 0 OR claim.gross > 0)
            AND line_gross[claim.line] + claim.gross > claim.symbol_gross_exposure
        THEN
            breach := jsonb_build_array(
                'LIMIT_GROSS_EXPOSURE', line_gross[claim.line] + claim.gross, claim.symbol_gross_exposure, true);
        END IF;
        IF breach IS NOT NULL THEN
            breaches := breaches || jsonb_build_object(claim.change::text, breach);
            CONTINUE;
        END IF;

        -- Reserved: the next claim of the group finds it in the totals.
        IF claim.side = 'BUY' THEN
            buys[claim.line] := open_qty + claim.qty;
        ELSE
            sells[claim.line] := open_qty + claim.qty;
        END IF;
        line_orders[claim.line] := line_orders[claim.line] + claim.orders;
        line_notional[claim.line] := line_notional[claim.line] + claim.notional;
        owner_orders[claim.owner] := owner_orders[claim.owner] + claim.orders;
        owner_recent[claim.owner] := owner_recent[claim.owner] + claim.orders;
        purse_notional[claim.purse] := purse_notional[claim.purse] + claim.notional;
        line_gross[claim.line] := line_gross[claim.line] + claim.gross;
        purse_gross[claim.purse] := purse_gross[claim.purse] + claim.gross;
    END LOOP;
    RETURN breaches::json;
END $$;
