-- The kill switch inside `append_group`, which calls these functions while it holds the shard's lock.

-- Whether a kill covers an order: each part of its scope is NULL or equal.
CREATE OR REPLACE FUNCTION is_covered(kill kills, by_order orders) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT (kill.account_id IS NULL OR kill.account_id = by_order.account_id)
        AND (kill.strategy IS NULL OR coalesce(kill.strategy = by_order.strategy, false))
        AND (kill.venue IS NULL OR kill.venue = by_order.venue)
        AND (kill.symbol IS NULL OR kill.symbol = by_order.symbol)
$$;

-- The changes that accept or amend an order, give one to another venue or begin to send one, which an active kill
-- covers, each with the oldest such kill;
-- NULL where there is none. Without an active kill this is one look into an empty index.
CREATE OR REPLACE FUNCTION killed_changes(
    incoming_orders orders[],
    order_changes integer[],
    order_bases integer[],
    incoming_outbox outbox_orders[],
    outbox_bases integer[]
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    sending text[];
BEGIN
    IF NOT EXISTS (SELECT FROM kills WHERE cleared_at IS NULL) THEN
        RETURN NULL;
    END IF;
    sending := ARRAY(
        SELECT message.order_id FROM unnest(incoming_outbox) WITH ORDINALITY AS message
        WHERE message.kind <> 'cancel'
        -- A new amend that is sent already comes from a history that a restore has lost: nothing begins with it.
        AND (
            message.status = 'sending'
            OR message.kind = 'amend' AND outbox_bases[message.ordinality] = 0 AND message.status <> 'sent'
        )
    );
    RETURN (
        SELECT json_object_agg(found.change, found.kill) FROM (
            SELECT DISTINCT ON (change) order_changes[place] AS change, kill
            FROM generate_subscripts(incoming_orders, 1) AS place
            -- An order that leaves for another venue was covered at the one that it leaves. One that is found at another
            -- venue after a restore is there already.
            LEFT JOIN orders AS leaving ON leaving.order_id = (incoming_orders[place]).order_id
                AND leaving.venue <> (incoming_orders[place]).venue
                AND (incoming_orders[place]).status IN ('ACCEPTED', 'SENDING')
            JOIN kills AS kill ON kill.cleared_at IS NULL
                AND (is_covered(kill, incoming_orders[place]) OR is_covered(kill, leaving))
            WHERE (incoming_orders[place]).order_id = ANY (sending)
            OR leaving.order_id IS NOT NULL
            OR (order_bases[place] = 0 AND (incoming_orders[place]).status <> 'REJECTED')
            ORDER BY change, kill.seq
        ) AS found
    );
END $$;

-- Whether a kill does not have the version before this one.
CREATE OR REPLACE FUNCTION is_stale_kill(kill_row json) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(
        (SELECT version FROM kills WHERE kill_id = kill_row->>'kill_id'), 0
    ) <> (kill_row->>'version')::integer - 1
$$;

-- The active kill that the same request (scope, mode, person and reason) has set before a new one, as {0: kill}; else NULL.
CREATE OR REPLACE FUNCTION active_twin(kill_row json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    incoming kills := json_populate_record(NULL::kills, kill_row);
BEGIN
    IF incoming.version > 1 THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT json_build_object(0, stored) FROM kills AS stored
        WHERE stored.cleared_at IS NULL
        AND (stored.account_id, stored.strategy, stored.venue, stored.symbol) IS NOT DISTINCT FROM
            (incoming.account_id, incoming.strategy, incoming.venue, incoming.symbol)
        AND (stored.mode, stored.set_by, stored.set_reason) = (incoming.mode, incoming.set_by, incoming.set_reason)
        ORDER BY stored.seq LIMIT 1
    );
END $$;

-- Writes a kill. A new one gets the number of its event and the open orders that it covers: it is alone in its group,
-- so these are the orders before it.
CREATE OR REPLACE FUNCTION write_kill(kill_row json, event_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    incoming kills := json_populate_record(NULL::kills, kill_row);
BEGIN
    IF incoming.version = 1 THEN
        incoming.seq := event_seq;
        INSERT INTO kill_orders (kill_id, order_id)
        SELECT incoming.kill_id, open.order_id FROM unfinished_orders AS open
        WHERE (incoming.account_id IS NULL OR open.account_id = incoming.account_id)
        AND (incoming.venue IS NULL OR open.venue = incoming.venue)
        AND (SELECT is_covered(incoming, covered) FROM orders AS covered WHERE covered.order_id = open.order_id);
    END IF;
    INSERT INTO kills ({kills.columns}) SELECT (incoming).*
    ON CONFLICT ({kills.key}) DO UPDATE SET {kills.updates};
END $$;
