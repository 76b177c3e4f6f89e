-- The check of the limits that new orders claim to keep (`breach_of` in domain/risk/exposure.py is the same for the other
-- engines). Returns {change: [reason, reached, allowed, of symbol]} of the claims that would breach one.
--
-- There are three kinds of totals, which the caller numbers: `line` for an account, symbol and currency, `purse` for an
-- account and currency, `owner` for an account. Each comes with what all claims of the group add to it and with their
-- strictest limits. If even these sums fit, every claim does, whatever the order: that is the usual case.
CREATE OR REPLACE FUNCTION breached_claims(claim_totals json, claim_rows json, conflicts integer[]) RETURNS json
LANGUAGE plpgsql AS $$
BEGIN
    IF lines_fit(claim_totals->'lines') AND purses_fit(claim_totals->'purses') AND owners_fit(claim_totals->'owners') THEN
        RETURN '{}';
    END IF;
    RETURN judged_in_order(claim_totals, claim_rows, conflicts);
END $$;

-- Limits of an account in a symbol. Quantities are over all currencies of the symbol, money is in one.
CREATE OR REPLACE FUNCTION lines_fit(lines json) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT bool_and(coalesce(
            total.orders + coalesce(key.orders, 0) <= coalesce(key.orders_max, 2147483647)
            AND total.notional + coalesce(key.notional, 0) <= coalesce(key.notional_max, 'Infinity')
            AND total.gross + coalesce(held.cost, 0) + coalesce(key.gross, 0) <= coalesce(key.gross_max, 'Infinity')
            -- An order whose side may still cross zero is judged alone.
            AND (key.position_max IS NULL OR (
                (key.buys IS NULL OR (coalesce(held.qty, 0) + total.buys >= 0
                    AND coalesce(held.qty, 0) + total.buys + key.buys <= key.position_max))
                AND (key.sells IS NULL OR (total.sells - coalesce(held.qty, 0) >= 0
                    AND total.sells - coalesce(held.qty, 0) + key.sells <= key.position_max))
            ))
            AND (key.reducing_buys IS NULL OR (held.qty < 0 AND held.qty + total.buys + key.buys <= 0))
            AND (key.reducing_sells IS NULL OR (held.qty > 0 AND total.sells - held.qty + key.sells <= 0)),
            false
        ))
        FROM json_to_recordset(lines) AS key (
            account_id text, symbol text, currency text, buys numeric, sells numeric, orders integer,
            notional numeric, gross numeric, reducing_buys boolean, reducing_sells boolean, orders_max integer,
            notional_max numeric, position_max numeric, gross_max numeric
        )
        LEFT JOIN LATERAL (
            SELECT stored.qty,
                CASE WHEN coalesce(stored.currency, '') = key.currency
                    THEN abs(stored.cost_basis) * stored.multiplier END AS cost
            FROM positions AS stored WHERE (stored.account_id, stored.symbol) = (key.account_id, key.symbol) LIMIT 1
        ) AS held ON true
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(stored.buy_qty), 0) AS buys, coalesce(sum(stored.sell_qty), 0) AS sells,
                coalesce(sum(stored.open_orders), 0) AS orders,
                coalesce(sum(stored.notional) FILTER (WHERE stored.currency = key.currency), 0) AS notional,
                coalesce(sum(opened(stored))
                    FILTER (WHERE stored.currency = key.currency), 0) AS gross
            FROM exposures AS stored WHERE (stored.account_id, stored.symbol) = (key.account_id, key.symbol)
        ) AS total
    );
END $$;

-- Limits of an account: money in one currency over all symbols, and open orders. Only totals that have a limit are sent
-- with `is_needed`.
CREATE OR REPLACE FUNCTION purses_fit(purses json) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(bool_and(
            total.orders + coalesce(key.orders, 0) <= coalesce(key.orders_max, 2147483647)
            AND total.notional + coalesce(key.notional, 0) <= coalesce(key.notional_max, 'Infinity')
            AND total.gross + held.cost + coalesce(key.gross, 0) <= coalesce(key.gross_max, 'Infinity')
            AND held.loss < coalesce(key.loss_max, 'Infinity')
        ), true)
        FROM json_to_recordset(purses) AS key (
            account_id text, currency text, is_needed boolean, needs_positions boolean, day date, orders integer,
            notional numeric, gross numeric, orders_max integer, notional_max numeric, gross_max numeric,
            loss_max numeric
        )
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(stored.open_orders), 0) AS orders,
                coalesce(sum(stored.notional) FILTER (WHERE stored.currency = key.currency), 0) AS notional,
                coalesce(sum(opened(stored))
                    FILTER (WHERE stored.currency = key.currency), 0) AS gross
            FROM exposures AS stored WHERE stored.account_id = key.account_id
        ) AS total
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(abs(stored.cost_basis) * stored.multiplier), 0) AS cost,
                coalesce(-sum(stored.day_pnl * stored.multiplier) FILTER (WHERE stored.day = key.day), 0) AS loss
            FROM positions AS stored
            WHERE key.needs_positions AND stored.account_id = key.account_id AND stored.symbol <> '*'
            AND coalesce(stored.currency, '') = key.currency
        ) AS held
        WHERE key.is_needed
    );
END $$;

-- The limit on the orders of an account within its window.
CREATE OR REPLACE FUNCTION owners_fit(owners json) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(bool_and(recent_orders(key.account_id, key.since) + key.orders <= key.window_max), true)
        FROM json_to_recordset(owners) AS key (account_id text, orders integer, since text, window_max integer)
        WHERE key.window_max IS NOT NULL
    );
END $$;

CREATE OR REPLACE FUNCTION recent_orders(of_account text, since text) RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT FROM orders AS stored
            WHERE stored.account_id = of_account AND stored.order_id >= since
            AND NOT (stored.version = 1 AND stored.status = 'REJECTED')
            LIMIT 10000 -- WINDOW_ORDERS_MAX in domain/risk/book.py
        ) AS page
    );
END $$;

-- Judge the claims of a group one after the other, each on the totals and the claims before it.
CREATE OR REPLACE FUNCTION judged_in_order(claim_totals json, claim_rows json, conflicts integer[]) RETURNS json
LANGUAGE plpgsql AS $$
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
    FROM json_to_recordset(claim_totals->'lines') AS key (line integer, account_id text, symbol text, currency text)
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
    FROM json_to_recordset(claim_totals->'purses') AS key (purse integer, account_id text, currency text, day date)
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

    SELECT array_agg(coalesce(total.orders, 0) ORDER BY owner),
        array_agg(CASE WHEN key.window_max IS NULL THEN 0 ELSE recent_orders(key.account_id, key.since) END ORDER BY owner)
    INTO owner_orders, owner_recent
    FROM json_to_recordset(claim_totals->'owners') AS key (
        owner integer, account_id text, since text, window_max integer
    )
    LEFT JOIN LATERAL (
        SELECT sum(stored.open_orders)::integer AS orders FROM exposures AS stored
        WHERE stored.account_id = key.account_id
    ) AS total ON true;

    FOR claim IN
        SELECT (row->>0)::integer AS change, (row->>1)::integer AS line, (row->>2)::integer AS purse,
            (row->>3)::integer AS owner, row->>4 AS side, (row->>5)::numeric AS qty,
            (row->>6)::numeric AS notional, (row->>7)::boolean AS reducing, (row->>8)::integer AS open_orders,
            (row->>9)::integer AS symbol_open_orders, (row->>10)::numeric AS open_notional, (row->>11)::numeric AS symbol_open_notional,
            (row->>12)::numeric AS position, (row->>13)::numeric AS gross_exposure, (row->>14)::numeric AS symbol_gross_exposure,
            (row->>15)::numeric AS daily_loss, (row->>16)::integer AS window_orders,
            (row->>17)::integer AS orders, (row->>18)::numeric AS gross -- an amend adds no order
        FROM json_array_elements(claim_rows) AS row
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
            IF signed >= 0 OR worst > 0 THEN
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
