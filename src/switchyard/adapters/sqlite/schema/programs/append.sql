-- The only way to write to the journal: an INSERT into this view is one group, and its trigger writes all rows of the
-- group.
--
-- apsw releases the GIL for every statement and has to wait for it afterwards. A group written in eleven statements
-- spent half of its time waiting; one autocommitted statement waits once, after its fsync.
--
-- Each column is a JSON array of rows, or NULL; a row is an array of its values. `jsonb_each` returns rows in binary
-- form; `json_each` would parse each row again for every column. Text in braces is filled in by
-- adapters/sqlite/append.py, which also builds the INSERT: the columns of a table, its values out of a JSON array,
-- and the updates of a later version.

DROP VIEW IF EXISTS append_group; -- drops its trigger too

CREATE VIEW append_group AS
SELECT
    NULL AS events, NULL AS data, NULL AS digests, NULL AS plain_orders, NULL AS new_orders, NULL AS changed_orders,
    NULL AS plain_outbox, NULL AS new_outbox, NULL AS changed_outbox, NULL AS begun,
    NULL AS plain_keys, NULL AS new_keys, NULL AS keys, NULL AS positions, NULL AS new_executions, NULL AS checked_executions,
    NULL AS cursors, NULL AS results, NULL AS new_kills, NULL AS kills, NULL AS kill_orders,
    NULL AS group_id, NULL AS outcomes, NULL AS seq, NULL AS hash, NULL AS at, NULL AS delete_groups_before,
    NULL AS seen_epoch, NULL AS seen_seq, NULL AS seen_hash;

CREATE TRIGGER append_group_insert INSTEAD OF INSERT ON append_group
BEGIN
    -- The head must be the one that this process saw last: no other process writes to this file.
    SELECT RAISE(ABORT, 'another history') WHERE NEW.group_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM journal_heads
        WHERE shard = 0 AND (epoch, seq, hash) = (NEW.seen_epoch, NEW.seen_seq, NEW.seen_hash)
    );

    -- A new key must not be taken. The primary key rejects one that is, too, but a key with two orders is the one mistake
    -- that no later check finds.
    SELECT RAISE(ABORT, 'taken key') WHERE EXISTS (
        SELECT 1 FROM jsonb_each(NEW.new_keys) AS new CROSS JOIN idempotency_keys AS stored
        ON (stored.account_id, stored.operation, stored.idempotency_key)
            = (new.value->>0, new.value->>1, new.value->>2)
    ) OR EXISTS (
        SELECT 1 FROM jsonb_each(NEW.plain_keys) AS new CROSS JOIN idempotency_keys AS stored
        ON (stored.account_id, stored.operation, stored.idempotency_key)
            = (new.value->>0, new.value->>1, new.value->>2)
    );

    -- An attempt that begins with its order must not pass those that wait in its lane, and no venue has reported on the
    -- order before.
    SELECT RAISE(ABORT, 'early attempt') WHERE EXISTS (
        SELECT 1 FROM outbox_orders WHERE status IN ('queued', 'failed') AND kind = 'new'
    ) AND EXISTS (
        SELECT 1 FROM jsonb_each(NEW.begun) AS new CROSS JOIN outbox_orders AS waiting
        ON waiting.lane = new.value->>0 AND waiting.status IN ('queued', 'failed') AND waiting.kind = 'new'
    ) OR EXISTS (
        SELECT 1 FROM executions WHERE stray_client_order_id IS NOT NULL
    ) AND EXISTS (
        SELECT 1 FROM jsonb_each(NEW.begun) AS new CROSS JOIN executions AS stray
        ON stray.stray_client_order_id BETWEEN new.value->>1 AND new.value->>2
    );

    -- The events are numbered from the one after the head.
    INSERT INTO events (seq, epoch, at, type, account_id, order_id, data, digest)
    SELECT
        NEW.seen_seq + 1 + key, NEW.seen_epoch, NEW.at, value->>0, value->>1, value->>2,
        CAST(substr(NEW.data, value->>3, value->>4) AS TEXT), substr(NEW.digests, 1 + 32 * key, 32)
    FROM jsonb_each(NEW.events);

    -- First versions have no ON CONFLICT clause: a unique index rejects one that exists already.
    INSERT INTO orders ({orders.plain_columns})
    SELECT {orders.plain_values} FROM jsonb_each(NEW.plain_orders);

    INSERT INTO orders ({orders.columns})
    SELECT {orders.values} FROM jsonb_each(NEW.new_orders);

    UPDATE orders SET {orders.changed}
    FROM (SELECT {orders.changes} FROM jsonb_each(NEW.changed_orders)) AS new
    WHERE orders.order_id = new.order_id;

    INSERT INTO outbox_orders ({outbox_orders.plain_columns})
    SELECT {outbox_orders.plain_values} FROM jsonb_each(NEW.plain_outbox);

    INSERT INTO outbox_orders ({outbox_orders.columns})
    SELECT {outbox_orders.values} FROM jsonb_each(NEW.new_outbox);

    UPDATE outbox_orders SET {outbox_orders.changed}
    FROM (SELECT {outbox_orders.changes} FROM jsonb_each(NEW.changed_outbox)) AS new
    WHERE (outbox_orders.order_id, outbox_orders.kind, outbox_orders.number) = (new.order_id, new.kind, new.number);

    INSERT INTO idempotency_keys ({idempotency_keys.plain_columns})
    SELECT {idempotency_keys.plain_values} FROM jsonb_each(NEW.plain_keys);

    INSERT INTO idempotency_keys ({idempotency_keys.columns})
    SELECT {idempotency_keys.values} FROM jsonb_each(NEW.new_keys);

    -- `WHERE true`, here and below, tells the parser that ON CONFLICT belongs to the INSERT and not to a join.
    INSERT INTO idempotency_keys ({idempotency_keys.columns})
    SELECT {idempotency_keys.values} FROM jsonb_each(NEW.keys) WHERE true
    ON CONFLICT ({idempotency_keys.key}) DO UPDATE SET {idempotency_keys.updates};

    -- The result of an order that ended, where the key still belongs to that order.
    UPDATE idempotency_keys
    SET {key_results.changed}, version = version + 1
    FROM (SELECT {key_results.values} FROM jsonb_each(NEW.results)) AS result
    WHERE (
        idempotency_keys.account_id, idempotency_keys.operation, idempotency_keys.idempotency_key,
        idempotency_keys.order_id
    ) = (result.account_id, result.operation, result.idempotency_key, result.order_id);

    INSERT INTO positions ({positions.columns})
    SELECT {positions.values} FROM jsonb_each(NEW.positions) WHERE true
    ON CONFLICT ({positions.key}) DO UPDATE SET {positions.updates};

    INSERT INTO executions ({executions.columns})
    SELECT {executions.values} FROM jsonb_each(NEW.new_executions);

    -- The version check leaves one kind of conflict: a stray report whose order exists now.
    INSERT INTO executions ({executions.columns})
    SELECT {executions.values} FROM jsonb_each(NEW.checked_executions) WHERE true
    ON CONFLICT ({executions.key}) DO UPDATE SET {executions.updates};

    INSERT INTO reader_cursors ({reader_cursors.columns})
    SELECT {reader_cursors.values} FROM jsonb_each(NEW.cursors) WHERE true
    ON CONFLICT ({reader_cursors.key}) DO UPDATE SET {reader_cursors.updates};

    -- A group with a new kill has no other change, so the orders are those before it. Three indexes have the open ones;
    -- CROSS JOIN keeps the search from running without a kill.
    INSERT INTO kill_orders (kill_id, order_id)
    SELECT kill.kill_id, covered.order_id
    FROM (SELECT {kills.values} FROM jsonb_each(NEW.new_kills)) AS kill
    CROSS JOIN orders AS covered
    WHERE covered.order_id IN (
        SELECT order_id FROM orders WHERE status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED')
        UNION ALL
        SELECT order_id FROM outbox_orders WHERE status IN ('queued', 'failed')
        UNION ALL
        SELECT order_id FROM outbox_orders WHERE status IN ('sending', 'uncertain')
    )
    AND covered.status NOT IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED')
    AND (kill.account_id IS NULL OR kill.account_id = covered.account_id)
    AND (kill.strategy IS NULL OR kill.strategy = covered.strategy)
    AND (kill.venue IS NULL OR kill.venue = covered.venue)
    AND (kill.symbol IS NULL OR kill.symbol = covered.symbol);

    INSERT INTO kills ({kills.columns})
    SELECT {kills.values} FROM jsonb_each(NEW.new_kills);

    INSERT INTO kills ({kills.columns})
    SELECT {kills.values} FROM jsonb_each(NEW.kills) WHERE true
    ON CONFLICT ({kills.key}) DO UPDATE SET {kills.updates};

    INSERT INTO kill_orders ({kill_orders.columns})
    SELECT {kill_orders.values} FROM jsonb_each(NEW.kill_orders);

    -- A rebuild inserts rows without a group.
    INSERT INTO append_groups (group_id, at, outcomes)
    SELECT NEW.group_id, NEW.at, NEW.outcomes WHERE NEW.group_id IS NOT NULL;

    DELETE FROM append_groups WHERE NEW.delete_groups_before IS NOT NULL AND at < NEW.delete_groups_before;

    UPDATE journal_heads SET seq = NEW.seq, hash = NEW.hash, at = NEW.at WHERE shard = 0 AND seq < NEW.seq;
END;
