-- The one way to write: `append_group` takes a group of changes, rejects the stale ones and writes the others.

-- Makes sure that the segment of this seq exists.
CREATE OR REPLACE FUNCTION ensure_segment(for_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    segment_length CONSTANT bigint := 1000000;
    segment_number bigint := for_seq / segment_length;
    segment_name text := 'events_' || lpad(segment_number::text, 6, '0');
BEGIN
    IF to_regclass(segment_name) IS NOT NULL THEN
        RETURN;
    END IF;
    -- Shards grow at the same time; the second one finds the segment made.
    PERFORM pg_advisory_xact_lock(hashtext('switchyard'), 2);
    IF to_regclass(segment_name) IS NOT NULL THEN
        RETURN;
    END IF;
    -- Attached rather than created in place, which would wait for every reader of the journal.
    EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING ALL)', segment_name);
    EXECUTE format(
        'ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
        segment_name, segment_number * segment_length, (segment_number + 1) * segment_length
    );
END $$;

SELECT ensure_segment(0);

-- As `link` in domain/chain.py; the first line of a group continues from the journal's head.
CREATE OR REPLACE FUNCTION chain_link(state text, head_hash text, line text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN encode(sha256(convert_to(coalesce(state, head_hash) || line, 'UTF8')), 'hex');
END $$;

CREATE OR REPLACE AGGREGATE chain_hash(head_hash text, line text) (SFUNC = chain_link, STYPE = text);

-- Rows are JSON of the domain's structs; the list beside them tells which change each row belongs to, counted from 0.
CREATE OR REPLACE FUNCTION append_group(
    to_shard integer,
    as_group text,
    clock timestamptz,
    change_count integer,
    event_changes integer[],
    event_types text[],
    event_accounts text[],
    event_orders text[],
    event_tails text[],
    order_changes integer[],
    order_rows json,
    key_changes integer[],
    key_rows json,
    outbox_changes integer[],
    outbox_rows json,
    execution_changes integer[],
    execution_rows json,
    cursor_changes integer[],
    cursor_rows json,
    position_changes integer[],
    position_rows json,
    position_bases integer[], -- the version that each position must have: one change may hold several fills of it
    OUT seq_before bigint, -- the events of the changes that were not conflicts are numbered from here on
    OUT conflicts integer[],
    OUT taken json -- for each change whose idempotency key was taken, the entry that has it
) LANGUAGE plpgsql AS $$
DECLARE
    head journal_heads;
    wanted_orders orders[];
    wanted_keys idempotency_keys[];
    wanted_outbox outbox_orders[];
    wanted_positions positions[];
    wanted_executions executions[];
    line_start text;
    line_middle text;
    last_seq bigint;
BEGIN
    -- A statement of its own: only what begins after the lock is held sees what the last holder committed.
    SELECT * INTO head FROM journal_heads WHERE shard = to_shard FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO journal_heads VALUES (to_shard, 1, 0, repeat('0', 64), NULL) ON CONFLICT DO NOTHING;
        SELECT * INTO head FROM journal_heads WHERE shard = to_shard FOR UPDATE;
    END IF;

    SELECT answered.seq_before, answered.conflicts, answered.taken INTO seq_before, conflicts, taken
    FROM append_groups AS answered WHERE answered.group_id = as_group;
    IF FOUND THEN
        RETURN;
    END IF;

    wanted_orders := ARRAY(SELECT wanted FROM json_populate_recordset(NULL::orders, order_rows) AS wanted);
    wanted_keys := ARRAY(SELECT wanted FROM json_populate_recordset(NULL::idempotency_keys, key_rows) AS wanted);
    wanted_outbox := ARRAY(SELECT wanted FROM json_populate_recordset(NULL::outbox_orders, outbox_rows) AS wanted);
    wanted_positions := ARRAY(SELECT wanted FROM json_populate_recordset(NULL::positions, position_rows) AS wanted);
    wanted_executions := ARRAY(SELECT wanted FROM json_populate_recordset(NULL::executions, execution_rows) AS wanted);

    seq_before := head.seq;
    -- Lookups in place of joins: a plan made over empty tables could otherwise walk the grown ones from end to end.
    conflicts := ARRAY(
        SELECT order_changes[wanted.ordinality] FROM unnest(wanted_orders) WITH ORDINALITY AS wanted
        WHERE wanted.version - 1 <> coalesce((
            SELECT present.version FROM orders AS present WHERE present.order_id = wanted.order_id
        ), 0)
        OR wanted.version = 1 AND (
            SELECT true FROM orders AS present WHERE present.venue_client_order_id = wanted.venue_client_order_id
        )
        UNION
        SELECT key_changes[wanted.ordinality] FROM unnest(wanted_keys) WITH ORDINALITY AS wanted
        WHERE wanted.version - 1 <> coalesce((
            SELECT present.version FROM idempotency_keys AS present
            WHERE (present.account_id, present.operation, present.idempotency_key)
                = (wanted.account_id, wanted.operation, wanted.idempotency_key)
        ), 0)
        UNION
        SELECT outbox_changes[wanted.ordinality] FROM unnest(wanted_outbox) WITH ORDINALITY AS wanted
        WHERE wanted.version - 1 <> coalesce((
            SELECT present.version FROM outbox_orders AS present
            WHERE (present.order_id, present.kind, present.number) = (wanted.order_id, wanted.kind, wanted.number)
        ), 0)
        UNION
        SELECT position_changes[wanted.ordinality] FROM unnest(wanted_positions) WITH ORDINALITY AS wanted
        WHERE position_bases[wanted.ordinality] <> coalesce((
            SELECT present.version FROM positions AS present
            WHERE (present.account_id, present.symbol) = (wanted.account_id, wanted.symbol)
        ), 0)
        UNION
        SELECT execution_changes[wanted.ordinality] FROM unnest(wanted_executions) WITH ORDINALITY AS wanted
        WHERE (
            SELECT true FROM executions AS present
            WHERE (present.venue, present.exec_id) = (wanted.venue, wanted.exec_id)
            AND (present.order_id <> '' OR wanted.order_id = '')
        )
    );
    IF cardinality(conflicts) > 0 THEN
        SELECT json_object_agg(key_changes[wanted.ordinality], taking) INTO taken
        FROM unnest(wanted_keys) WITH ORDINALITY AS wanted CROSS JOIN LATERAL (
            SELECT * FROM idempotency_keys AS present
            WHERE (present.account_id, present.operation, present.idempotency_key)
                = (wanted.account_id, wanted.operation, wanted.idempotency_key)
            LIMIT 1
        ) AS taking
        WHERE taking.version <> wanted.version - 1;
    END IF;
    IF cardinality(conflicts) = change_count THEN
        RETURN;
    END IF;

    -- Half a segment ahead, so that the next one never has to be made in haste.
    PERFORM ensure_segment(head.seq + cardinality(event_tails) + 500000);
    clock := greatest(clock, head.at);
    line_start := format('{"epoch":%s,"shard":%s,"seq":', head.epoch, to_shard);
    line_middle := to_char(clock AT TIME ZONE 'UTC', '",\"at\":\""YYYY-MM-DD"T"HH24:MI:SS.US"Z\","');
    INSERT INTO events (shard, seq, epoch, at, type, account_id, order_id, text, hash)
    SELECT
        to_shard, seq, head.epoch, clock, type, account_id, order_id, line,
        chain_hash(head.hash, line) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING)
    FROM (
        SELECT *, line_start || seq || line_middle || tail AS line
        FROM (
            SELECT *, head.seq + row_number() OVER (ORDER BY ordinality) AS seq
            FROM unnest(event_changes, event_types, event_accounts, event_orders, event_tails) WITH ORDINALITY
                AS wanted (change, type, account_id, order_id, tail)
            WHERE change <> ALL (conflicts)
        ) AS numbered
    ) AS lines;
    GET DIAGNOSTICS last_seq = ROW_COUNT;
    last_seq := head.seq + last_seq;

    INSERT INTO orders
    SELECT
        order_id, account_id, client_order_id, venue_client_order_id, symbol, side, type, time_in_force, qty, price,
        stop_price, status, filled_qty, filled_notional, venue, venue_order_id, reason, strategy, tags, accepted_at,
        updated_at, version
    FROM unnest(wanted_orders) WITH ORDINALITY AS wanted
    WHERE order_changes[wanted.ordinality] <> ALL (conflicts)
    ON CONFLICT (order_id) DO UPDATE SET
        qty = excluded.qty, price = excluded.price, status = excluded.status, filled_qty = excluded.filled_qty,
        filled_notional = excluded.filled_notional, venue = excluded.venue, venue_order_id = excluded.venue_order_id,
        reason = excluded.reason, updated_at = excluded.updated_at, version = excluded.version;

    INSERT INTO idempotency_keys
    SELECT
        account_id, operation, idempotency_key, generation, order_id, request_digest, created_at, expires_at, status,
        http_status, response_payload_json, result_digest, version
    FROM unnest(wanted_keys) WITH ORDINALITY AS wanted
    WHERE key_changes[wanted.ordinality] <> ALL (conflicts)
    ON CONFLICT (account_id, operation, idempotency_key) DO UPDATE SET
        generation = excluded.generation, order_id = excluded.order_id, request_digest = excluded.request_digest,
        created_at = excluded.created_at, expires_at = excluded.expires_at, status = excluded.status,
        http_status = excluded.http_status, response_payload_json = excluded.response_payload_json,
        result_digest = excluded.result_digest, version = excluded.version;

    INSERT INTO outbox_orders
    SELECT
        order_id, kind, number, venue, venue_client_order_id, status, attempt, next_attempt_at, last_error, worker,
        created_at, updated_at, version, lane, error_detail
    FROM unnest(wanted_outbox) WITH ORDINALITY AS wanted
    WHERE outbox_changes[wanted.ordinality] <> ALL (conflicts)
    ON CONFLICT (order_id, kind, number) DO UPDATE SET
        status = excluded.status, attempt = excluded.attempt, next_attempt_at = excluded.next_attempt_at,
        last_error = excluded.last_error, error_detail = excluded.error_detail, worker = excluded.worker, updated_at = excluded.updated_at,
        version = excluded.version;

    INSERT INTO positions
    SELECT
        account_id, symbol, qty, cost_basis, realised_pnl, trade_result, consecutive_losses, high_water_mark, updated_at, version
    FROM unnest(wanted_positions) WITH ORDINALITY AS wanted
    WHERE position_changes[wanted.ordinality] <> ALL (conflicts)
    ON CONFLICT (account_id, symbol) DO UPDATE SET
        qty = excluded.qty, cost_basis = excluded.cost_basis, realised_pnl = excluded.realised_pnl,
        trade_result = excluded.trade_result, consecutive_losses = excluded.consecutive_losses, high_water_mark = excluded.high_water_mark,
        updated_at = excluded.updated_at, version = excluded.version;

    INSERT INTO executions
    SELECT venue, exec_id, order_id, stray_client_order_id
    FROM unnest(wanted_executions) WITH ORDINALITY AS wanted
    WHERE execution_changes[wanted.ordinality] <> ALL (conflicts)
    -- Only a report that was filed under no order is found here: its order has turned up.
    ON CONFLICT (venue, exec_id) DO UPDATE SET order_id = excluded.order_id, stray_client_order_id = NULL;

    INSERT INTO reader_cursors
    SELECT name, epoch, seq, hash
    FROM json_populate_recordset(NULL::reader_cursors, cursor_rows) WITH ORDINALITY AS wanted
    WHERE cursor_changes[wanted.ordinality] <> ALL (conflicts)
    ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, hash = excluded.hash;

    INSERT INTO append_groups (group_id, seq_before, conflicts, taken) VALUES (as_group, seq_before, conflicts, taken);

    -- A cursor that moves is no news: readers would wake each other for nothing.
    IF last_seq > head.seq THEN
        UPDATE journal_heads SET
            seq = last_seq,
            at = clock,
            hash = (SELECT events.hash FROM events WHERE events.shard = to_shard AND events.seq = last_seq)
        WHERE shard = to_shard;
        PERFORM pg_notify('switchyard', to_shard || ':' || last_seq);
    END IF;
    -- An answer that nobody has asked for again within the hour never will be; now and then the old ones go.
    IF last_seq / 4096 > head.seq / 4096 THEN
        DELETE FROM append_groups WHERE recorded_at < now() - interval '1 hour';
    END IF;
END $$;
