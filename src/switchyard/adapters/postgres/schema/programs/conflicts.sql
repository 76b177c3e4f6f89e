-- The version check of `append_group`: returns the numbers of the changes that conflict with the database.
--
-- A key of version n requires version n-1 in the database, or no row for the first version. Orders, outbox rows and
-- positions state the version that they require, since one change may move them several times. An execution must be new, unless the
-- stored one is a stray report on the order that this one names, by its id or that of an amend. The array after each array of rows gives the number of the
-- change that each row belongs to.
--
-- Subqueries instead of joins: each is an index lookup under any plan. A join planned while the tables are empty
-- could scan them from end to end once they have grown.
CREATE OR REPLACE FUNCTION conflicting_changes(
    incoming_orders orders[],
    order_changes integer[],
    order_bases integer[],
    incoming_keys idempotency_keys[],
    key_changes integer[],
    incoming_outbox outbox_orders[],
    outbox_changes integer[],
    outbox_bases integer[],
    incoming_positions positions[],
    position_changes integer[],
    position_bases integer[],
    incoming_executions executions[],
    execution_changes integer[]
) RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    conflicts integer[] := '{}';
BEGIN
    IF cardinality(incoming_orders) > 0 THEN
        conflicts := ARRAY(
            SELECT order_changes[incoming.ordinality] FROM unnest(incoming_orders) WITH ORDINALITY AS incoming
            WHERE order_bases[incoming.ordinality] <> coalesce((
                SELECT stored.version FROM orders AS stored WHERE stored.order_id = incoming.order_id
            ), 0)
            OR order_bases[incoming.ordinality] = 0 AND (
                SELECT true FROM orders AS stored WHERE stored.venue_client_order_id = incoming.venue_client_order_id
            )
        );
    END IF;
    IF cardinality(incoming_keys) > 0 THEN
        conflicts := conflicts || ARRAY(
            SELECT key_changes[incoming.ordinality] FROM unnest(incoming_keys) WITH ORDINALITY AS incoming
            WHERE incoming.version - 1 <> coalesce((
                SELECT stored.version FROM idempotency_keys AS stored
                WHERE (stored.account_id, stored.operation, stored.idempotency_key)
                    = (incoming.account_id, incoming.operation, incoming.idempotency_key)
            ), 0)
        );
    END IF;
    IF cardinality(incoming_outbox) > 0 THEN
        conflicts := conflicts || ARRAY(
            SELECT outbox_changes[incoming.ordinality] FROM unnest(incoming_outbox) WITH ORDINALITY AS incoming
            WHERE outbox_bases[incoming.ordinality] <> coalesce((
                SELECT stored.version FROM outbox_orders AS stored
                WHERE (stored.order_id, stored.kind, stored.number) = (incoming.order_id, incoming.kind, incoming.number)
            ), 0)
            -- An attempt at a venue whose only session another worker holds.
            OR incoming.status = 'sending' AND EXISTS (
                SELECT FROM venue_sessions AS session
                WHERE session.venue = incoming.venue AND session.worker IS DISTINCT FROM incoming.worker
            )
        );
    END IF;
    IF 0 = ANY (outbox_bases) THEN
        conflicts := conflicts || ARRAY(
            -- An attempt that begins with a new order, although others of its lane wait, or a venue has reported on the
            -- order before (as in `domain.ids.last_generation`).
            SELECT outbox_changes[incoming.ordinality] FROM unnest(incoming_outbox) WITH ORDINALITY AS incoming
            WHERE outbox_bases[incoming.ordinality] = 0 AND incoming.status = 'sending' AND (
                EXISTS (
                    SELECT FROM outbox_orders AS waiting
                    WHERE waiting.lane = incoming.lane AND waiting.status IN ('queued', 'failed') AND waiting.kind = 'new'
                )
                OR EXISTS (
                    SELECT FROM executions
                    WHERE stray_client_order_id BETWEEN incoming.venue_client_order_id
                    AND left(incoming.venue_client_order_id, 27) || 'fffff'
                )
            )
        );
    END IF;
    IF cardinality(incoming_positions) > 0 THEN
        conflicts := conflicts || ARRAY(
            SELECT position_changes[incoming.ordinality] FROM unnest(incoming_positions) WITH ORDINALITY AS incoming
            WHERE position_bases[incoming.ordinality] <> coalesce((
                SELECT stored.version FROM positions AS stored
                WHERE (stored.account_id, stored.symbol) = (incoming.account_id, incoming.symbol)
            ), 0)
        );
    END IF;
    IF cardinality(incoming_executions) > 0 THEN
        conflicts := conflicts || ARRAY(
            SELECT execution_changes[incoming.ordinality] FROM unnest(incoming_executions) WITH ORDINALITY AS incoming
            WHERE (
                SELECT true FROM executions AS stored
                WHERE (stored.venue, stored.exec_id) = (incoming.venue, incoming.exec_id)
                AND (stored.order_id <> '' OR stored.stray_client_order_id IS NULL OR stored.stray_client_order_id NOT IN (
                    SELECT own.venue_client_order_id FROM orders AS own WHERE own.order_id = incoming.order_id
                    UNION ALL
                    SELECT own.venue_client_order_id FROM outbox_orders AS own
                    WHERE own.order_id = incoming.order_id AND own.kind = 'amend'
                ))
            )
        );
    END IF;
    -- A change may conflict by several of its rows.
    RETURN CASE WHEN conflicts = '{}' THEN conflicts ELSE ARRAY(SELECT DISTINCT unnest(conflicts)) END;
END $$;
