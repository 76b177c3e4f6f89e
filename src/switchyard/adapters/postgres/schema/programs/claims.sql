-- The check of the limits that new orders claim to keep (`breach_of` in domain/risk/exposure.py is the same for the other
-- engines). Returns {change: [reason, reached, allowed, of symbol]} of the claims that would breach one.
--
-- The claims of a group are judged in order, each on the totals of the database and the claims before it. The three
-- kinds of totals have small numbers that the caller gives: `line` for an account, symbol and currency, `purse` for an
-- account and currency, `owner` for an account. So the running totals are arrays.
CREATE OR REPLACE FUNCTION breached_claims(claim_rows json, conflicts integer[]) RETURNS json LANGUAGE plpgsql AS $$
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
    -- Totals of the account in the symbol: quantities over all currencies, money in one.
    SELECT array_agg(coalesce(mine.qty, 0) ORDER BY line),
        array_agg(coalesce(total.buys, 0) ORDER BY line), array_agg(coalesce(total.sells, 0) ORDER BY line),
        array_agg(coalesce(total.orders, 0) ORDER BY line), array_agg(coalesce(total.notional, 0) ORDER BY line),
        array_agg(coalesce(total.gross, 0) + coalesce(mine.cost, 0) ORDER BY line)
    INTO held, buys, sells, line_orders, line_notional, line_gross
    FROM json_to_recordset(claim_rows->'lines') AS key (line integer, account_id text, symbol text, currency text)
    LEFT JOIN LATERAL (
        SELECT stored.qty,
            CASE WHEN coalesce(stored.currency, '') = key.currency THEN abs(stored.cost_basis) * stored.multiplier END
                AS cost
        FROM positions AS stored WHERE (stored.account_id, stored.symbol) = (key.account_id, key.symbol) LIMIT 1
    ) AS mine ON true
    LEFT JOIN LATERAL (
        SELECT sum(stored.buy_qty) AS buys, sum(stored.sell_qty) AS sells, sum(stored.open_orders)::integer AS orders,
            sum(stored.notional) FILTER (WHERE stored.currency = key.currency) AS notional,
            sum(stored.notional - stored.reducing_notional) FILTER (WHERE stored.currency = key.currency) AS gross
        FROM exposures AS stored WHERE (stored.account_id, stored.symbol) = (key.account_id, key.symbol)
    ) AS total ON true;

    SELECT array_agg(coalesce(total.notional, 0) ORDER BY purse),
        array_agg(coalesce(total.gross, 0) + coalesce(result.cost, 0) ORDER BY purse),
        array_agg(coalesce(result.loss, 0) ORDER BY purse)
    INTO purse_notional, purse_gross, purse_loss
    FROM json_to_recordset(claim_rows->'purses') AS key (purse integer, account_id text, currency text, day date)
    LEFT JOIN LATERAL (
        SELECT sum(stored.notional) AS notional, sum(stored.notional - stored.reducing_notional) AS gross
        FROM exposures AS stored WHERE stored.account_id = key.account_id AND stored.currency = key.currency
    ) AS total ON true
    LEFT JOIN LATERAL (
        SELECT sum(abs(stored.cost_basis) * stored.multiplier) AS cost,
            -sum(stored.day_pnl * stored.multiplier) FILTER (WHERE stored.day = key.day) AS loss
        FROM positions AS stored
        WHERE stored.account_id = key.account_id AND stored.symbol <> '*' AND coalesce(stored.currency, '') = key.currency
    ) AS result ON true;

    SELECT array_agg(coalesce(total.orders, 0) ORDER BY owner), array_agg(coalesce(window_orders.count, 0) ORDER BY owner)
    INTO owner_orders, owner_recent
    FROM json_to_recordset(claim_rows->'owners') AS key (owner integer, account_id text, since text, counts boolean)
    LEFT JOIN LATERAL (
        SELECT sum(stored.open_orders)::integer AS orders FROM exposures AS stored
        WHERE key.counts AND stored.account_id = key.account_id
    ) AS total ON true
    LEFT JOIN LATERAL (
        SELECT count(*)::integer AS count FROM (
            SELECT FROM orders AS recent
            WHERE recent.account_id = key.account_id AND recent.order_id >= key.since
            AND NOT (recent.version = 1 AND recent.status = 'REJECTED')
            LIMIT 10000 -- WINDOW_ORDERS_MAX in domain/risk/book.py
        ) AS page
    ) AS window_orders ON true;

    FOR claim IN SELECT * FROM json_to_recordset(claim_rows->'claims') AS parsed (
        change integer, line integer, purse integer, owner integer, side text, qty numeric, notional numeric,
        reducing boolean, open_orders integer, symbol_open_orders integer, open_notional numeric,
        symbol_open_notional numeric, position numeric, gross_exposure numeric, symbol_gross_exposure numeric,
        daily_loss numeric, window_orders integer
    ) LOOP
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
        ELSIF owner_orders[claim.owner] + 1 > claim.open_orders THEN
            breach := jsonb_build_array('LIMIT_OPEN_ORDERS', owner_orders[claim.owner] + 1, claim.open_orders, false);
        ELSIF line_orders[claim.line] + 1 > claim.symbol_open_orders THEN
            breach := jsonb_build_array(
                'LIMIT_OPEN_ORDERS', line_orders[claim.line] + 1, claim.symbol_open_orders, true);
        ELSIF purse_notional[claim.purse] + claim.notional > claim.open_notional THEN
            breach := jsonb_build_array(
                'LIMIT_OPEN_NOTIONAL', purse_notional[claim.purse] + claim.notional, claim.open_notional, false);
        ELSIF line_notional[claim.line] + claim.notional > claim.symbol_open_notional THEN
            breach := jsonb_build_array(
                'LIMIT_OPEN_NOTIONAL', line_notional[claim.line] + claim.notional, claim.symbol_open_notional, true);
        ELSIF abs(worst) > claim.position THEN
            breach := jsonb_build_array('LIMIT_POSITION', abs(worst), claim.position, true);
        ELSIF purse_gross[claim.purse] + claim.notional > claim.gross_exposure THEN
            breach := jsonb_build_array(
                'LIMIT_GROSS_EXPOSURE', purse_gross[claim.purse] + claim.notional, claim.gross_exposure, false);
        ELSIF line_gross[claim.line] + claim.notional > claim.symbol_gross_exposure THEN
            breach := jsonb_build_array(
                'LIMIT_GROSS_EXPOSURE', line_gross[claim.line] + claim.notional, claim.symbol_gross_exposure, true);
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
        line_orders[claim.line] := line_orders[claim.line] + 1;
        line_notional[claim.line] := line_notional[claim.line] + claim.notional;
        owner_orders[claim.owner] := owner_orders[claim.owner] + 1;
        owner_recent[claim.owner] := owner_recent[claim.owner] + 1;
        IF claim.purse IS NOT NULL THEN
            purse_notional[claim.purse] := purse_notional[claim.purse] + claim.notional;
        END IF;
        IF NOT claim.reducing THEN
            line_gross[claim.line] := line_gross[claim.line] + claim.notional;
            IF claim.purse IS NOT NULL THEN
                purse_gross[claim.purse] := purse_gross[claim.purse] + claim.notional;
            END IF;
        END IF;
    END LOOP;
    RETURN breaches::json;
END $$;
