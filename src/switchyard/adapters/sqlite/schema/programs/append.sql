-- The one way to write: a row inserted here is a group, taken apart by the trigger in one statement.
--
-- Every statement that Python runs gives up the interpreter's lock and has to wait for it afterwards. A group in eleven
-- statements spent half of its time in that queue; as one autocommitted statement it waits once, after its fsync.
--
-- Each column is a JSON array of rows, or NULL; a row is an array in the order of the table's columns. `jsonb_each` hands
-- rows on in binary form, where `json_each` would have each parsed again for every column. The encoder leaves out the
-- decimals of a whole second, but times that are compared or sorted need one fixed form.

DROP VIEW IF EXISTS append_group; -- and its trigger with it

CREATE VIEW append_group AS
SELECT
    NULL AS events, NULL AS new_orders, NULL AS changed_orders, NULL AS new_outbox, NULL AS changed_outbox,
    NULL AS keys, NULL AS positions, NULL AS executions, NULL AS cursors,
    NULL AS group_id, NULL AS outcomes, NULL AS seq, NULL AS hash, NULL AS at, NULL AS forget_before;

CREATE TRIGGER append_group_is_taken INSTEAD OF INSERT ON append_group
BEGIN
    INSERT INTO events (seq, epoch, at, type, account_id, order_id, text, hash)
    SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7
    FROM jsonb_each(NEW.events);

    -- A first version is inserted and nothing else, so that a unique index rejects one that is not the first.
    INSERT INTO orders
    SELECT
        value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8, value->>9,
        value->>10, value->>11, value->>12, value->>13, value->>14, value->>15, value->>16, value->>17, value->>18,
        value->>19, value->>20, value->>21
    FROM jsonb_each(NEW.new_orders);

    -- `WHERE true` tells the parser that ON CONFLICT belongs to the INSERT, not to a join.
    INSERT INTO orders
    SELECT
        value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8, value->>9,
        value->>10, value->>11, value->>12, value->>13, value->>14, value->>15, value->>16, value->>17, value->>18,
        value->>19, value->>20, value->>21
    FROM jsonb_each(NEW.changed_orders) WHERE true
    ON CONFLICT (order_id) DO UPDATE SET
        qty = excluded.qty, price = excluded.price, status = excluded.status, filled_qty = excluded.filled_qty,
        filled_notional = excluded.filled_notional, venue = excluded.venue, venue_order_id = excluded.venue_order_id,
        reason = excluded.reason, updated_at = excluded.updated_at, version = excluded.version;

    INSERT INTO outbox_orders
    SELECT
        value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6,
        iif(length(value->>7) = 20, substr(value->>7, 1, 19) || '.000000Z', value->>7),
        value->>8, value->>9,
        iif(length(value->>10) = 20, substr(value->>10, 1, 19) || '.000000Z', value->>10),
        value->>11, value->>12, value->>13, value->>14
    FROM jsonb_each(NEW.new_outbox);

    INSERT INTO outbox_orders
    SELECT
        value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6,
        iif(length(value->>7) = 20, substr(value->>7, 1, 19) || '.000000Z', value->>7),
        value->>8, value->>9,
        iif(length(value->>10) = 20, substr(value->>10, 1, 19) || '.000000Z', value->>10),
        value->>11, value->>12, value->>13, value->>14
    FROM jsonb_each(NEW.changed_outbox) WHERE true
    ON CONFLICT (order_id, kind, number) DO UPDATE SET
        status = excluded.status, attempt = excluded.attempt, next_attempt_at = excluded.next_attempt_at,
        last_error = excluded.last_error, error_detail = excluded.error_detail, worker = excluded.worker, updated_at = excluded.updated_at,
        version = excluded.version;

    INSERT INTO idempotency_keys
    SELECT
        value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6,
        iif(length(value->>7) = 20, substr(value->>7, 1, 19) || '.000000Z', value->>7),
        value->>8, value->>9, value->>10, value->>11, value->>12
    FROM jsonb_each(NEW.keys) WHERE true
    ON CONFLICT (account_id, operation, idempotency_key) DO UPDATE SET
        generation = excluded.generation, order_id = excluded.order_id, request_digest = excluded.request_digest,
        created_at = excluded.created_at, expires_at = excluded.expires_at, status = excluded.status,
        http_status = excluded.http_status, response_payload_json = excluded.response_payload_json,
        result_digest = excluded.result_digest, version = excluded.version;

    INSERT INTO positions
    SELECT
        value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8, value->>9
    FROM jsonb_each(NEW.positions) WHERE true
    ON CONFLICT (account_id, symbol) DO UPDATE SET
        qty = excluded.qty, cost_basis = excluded.cost_basis, realised_pnl = excluded.realised_pnl,
        trade_result = excluded.trade_result, consecutive_losses = excluded.consecutive_losses, high_water_mark = excluded.high_water_mark,
        updated_at = excluded.updated_at, version = excluded.version;

    -- Only a report that was filed under no order is found here: its order has turned up.
    INSERT INTO executions
    SELECT value->>0, value->>1, value->>2, value->>3 FROM jsonb_each(NEW.executions) WHERE true
    ON CONFLICT (venue, exec_id) DO UPDATE SET order_id = excluded.order_id, stray_client_order_id = NULL;

    INSERT INTO reader_cursors
    SELECT value->>0, value->>1, value->>2, value->>3 FROM jsonb_each(NEW.cursors) WHERE true
    ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, hash = excluded.hash;

    -- A rebuild brings rows without a group.
    INSERT INTO append_groups SELECT NEW.group_id, NEW.at, NEW.outcomes WHERE NEW.group_id IS NOT NULL;
    DELETE FROM append_groups WHERE NEW.forget_before IS NOT NULL AND at < NEW.forget_before;
    UPDATE journal_heads SET seq = NEW.seq, hash = NEW.hash, at = NEW.at WHERE shard = 0 AND seq < NEW.seq;
END;
