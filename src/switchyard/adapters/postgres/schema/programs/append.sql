-- The only way to write to the journal: `append_group` rejects the changes of a group that conflict and writes the
-- others.
--
-- Rows are JSON of the domain structs; the array beside them gives the number of the change that each row belongs to,
-- counted from 0. Text in braces is filled in from adapters/tables.py.
CREATE OR REPLACE FUNCTION append_group(
    to_shard integer,
    new_group_id text,
    commit_time timestamptz,
    change_count integer,
    event_changes integer[],
    event_types text[],
    event_accounts text[],
    event_orders text[],
    event_data text[],
    order_changes integer[],
    order_rows json,
    order_bases integer[], -- the version that each order must have: one change may move it several times
    key_changes integer[],
    key_rows json,
    outbox_changes integer[],
    outbox_rows json,
    outbox_bases integer[], -- the same for outbox rows
    outbox_events integer[], -- the event that describes each row, counted from 1 within the group
    execution_changes integer[],
    execution_rows json,
    cursor_changes integer[],
    cursor_rows json,
    position_changes integer[],
    position_rows json,
    position_bases integer[], -- the same for positions
    result_changes integer[],
    result_rows json, -- the results of orders that ended, with the columns of idempotency_keys
    claim_lines json, -- what the orders that have limits to keep add to which totals; NULL if none has
    claim_rows text, -- these orders, in the order of their changes; JSON that is rarely read
    claim_limits text, -- the limits that these orders have; the same
    claims_are_plain boolean, -- whether all orders of the group are such, new and not reducing
    kill_row json, -- the kill of a group of one change; NULL in every other group
    seen_epoch integer, -- the head that the calling process saw last; NULL if it saw none yet
    seen_seq bigint,
    seen_hash text,
    OUT seq_before bigint, -- the events of the changes without a conflict are numbered from the next seq on
    OUT conflicts integer[], -- the numbers of the rejected changes
    OUT taken json, -- for each change whose idempotency key was taken, the stored entry of the key
    OUT killed json, -- for each change that places an order which a kill covers, the kill
    OUT breaches json, -- for each change that would have breached a limit: the reason, what was reached and allowed
    OUT head_epoch integer, -- the head after this call
    OUT head_seq bigint,
    OUT head_hash text
) LANGUAGE plpgsql AS $$
DECLARE
    head journal_heads;
    incoming_orders orders[];
    incoming_keys idempotency_keys[];
    incoming_outbox outbox_orders[];
    incoming_positions positions[];
    incoming_executions executions[];
    incoming_cursors reader_cursors[];
    incoming_results idempotency_keys[];
    incoming_claims claim_line[];
    members text[]; -- of the line of each event
    time_of_lines text;
    event_seqs bigint[]; -- the number of each event, or of the last one before it where its change was rejected
    digests bytea[]; -- of the line of each event; NULL where its change was rejected
    is_reserved boolean := false;
    last_seq bigint;
BEGIN
    -- 1. Parse the arguments, before the lock: the other gateways do not wait for it. Nothing here reads a table.
    SELECT
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::orders, order_rows) AS parsed),
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::idempotency_keys, key_rows) AS parsed),
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::outbox_orders, outbox_rows) AS parsed),
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::positions, position_rows) AS parsed),
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::executions, execution_rows) AS parsed),
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::reader_cursors, cursor_rows) AS parsed),
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::idempotency_keys, result_rows) AS parsed),
        ARRAY(SELECT parsed FROM json_populate_recordset(NULL::claim_line, claim_lines) AS parsed),
        ARRAY(
            SELECT members_text(type, account_id, order_id, data)
            FROM unnest(event_types, event_accounts, event_orders, event_data)
                AS incoming (type, account_id, order_id, data)
        )
    INTO
        incoming_orders, incoming_keys, incoming_outbox, incoming_positions, incoming_executions, incoming_cursors,
        incoming_results, incoming_claims, members;

    -- 2. Lock the shard.
    -- A statement of its own: only a statement that starts after the lock is held sees what the last holder committed.
    SELECT * INTO head FROM journal_heads WHERE shard = to_shard FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO journal_heads (shard, epoch, seq, hash) VALUES (to_shard, 1, 0, repeat('0', 64))
        ON CONFLICT DO NOTHING;
        SELECT * INTO head FROM journal_heads WHERE shard = to_shard FOR UPDATE;
    END IF;

    -- Reject a caller that has seen another history: an older database is in the place of the one that it wrote to.
    IF (head.epoch, head.seq, head.hash) <> (seen_epoch, seen_seq, seen_hash)
        AND (head.epoch <> seen_epoch OR NOT has_line(to_shard, seen_seq, seen_hash))
    THEN
        RAISE EXCEPTION 'the journal is at epoch %, seq %, and does not have epoch %, seq %',
            head.epoch, head.seq, seen_epoch, seen_seq USING ERRCODE = 'SY001';
    END IF;
    head_epoch := head.epoch;
    head_seq := head.seq;
    head_hash := head.hash;

    -- 3. Answer a repeated group with its stored outcome.
    SELECT stored.seq_before, stored.conflicts, stored.taken, stored.killed, stored.breaches
    INTO seq_before, conflicts, taken, killed, breaches
    FROM append_groups AS stored WHERE stored.group_id = new_group_id;
    IF FOUND THEN
        RETURN;
    END IF;

    -- 4. Reject the changes that conflict.
    seq_before := head.seq;
    conflicts := conflicting_changes(
        incoming_orders, order_changes, order_bases, incoming_keys, key_changes, incoming_outbox, outbox_changes,
        outbox_bases, incoming_positions, position_changes, position_bases, incoming_executions, execution_changes
    );
    IF cardinality(conflicts) > 0 THEN
        SELECT json_object_agg(key_changes[incoming.ordinality], stored) INTO taken
        FROM unnest(incoming_keys) WITH ORDINALITY AS incoming CROSS JOIN LATERAL (
            SELECT * FROM idempotency_keys AS entry
            WHERE (entry.account_id, entry.operation, entry.idempotency_key)
                = (incoming.account_id, incoming.operation, incoming.idempotency_key)
            LIMIT 1
        ) AS stored
        WHERE stored.version <> incoming.version - 1;
    END IF;
    killed := killed_changes(incoming_orders, order_changes, order_bases, incoming_outbox, outbox_bases);
    IF killed IS NOT NULL THEN
        conflicts := ARRAY(SELECT unnest(conflicts) UNION SELECT json_object_keys(killed)::integer);
    END IF;
    IF kill_row IS NOT NULL THEN
        killed := active_twin(kill_row);
        IF killed IS NOT NULL OR is_stale_kill(kill_row) THEN
            conflicts := ARRAY[0];
        END IF;
    END IF;
    -- Last: what is rejected anyway claims nothing.
    IF claim_lines IS NOT NULL THEN
        IF NOT head.keeps_exposures THEN
            PERFORM start_exposures(to_shard);
            head.keeps_exposures := true;
        END IF;
        is_reserved := claims_are_plain AND cardinality(conflicts) = 0;
        breaches := breached_claims(incoming_claims, claim_rows, claim_limits, conflicts, is_reserved);
        conflicts := conflicts || ARRAY(SELECT json_object_keys(breaches)::integer);
        is_reserved := is_reserved AND breaches IS NULL;
    END IF;
    IF cardinality(conflicts) = change_count THEN
        RETURN;
    END IF;

    -- 5. Append the events of the other changes: number them and continue the hash chain.
    -- The next segment is created half a segment ahead, so that no append has to wait for one.
    PERFORM ensure_segment(head.seq + cardinality(event_data) + 500000);
    commit_time := greatest(commit_time, head.at);
    time_of_lines := time_text(commit_time);
    last_seq := head.seq;
    FOR place IN 1 .. cardinality(members) LOOP
        IF event_changes[place] = ANY (conflicts) THEN
            digests[place] := NULL;
        ELSE
            last_seq := last_seq + 1;
            digests[place] := chain_digest(
                head_hash, head_text(head.epoch, to_shard, last_seq, time_of_lines) || members[place]
            );
            head_hash := encode(digests[place], 'hex');
        END IF;
        event_seqs[place] := last_seq;
    END LOOP;
    INSERT INTO events (shard, seq, epoch, at, type, account_id, order_id, data, digest)
    SELECT to_shard, seq, head.epoch, commit_time, type, account_id, order_id, data, digest
    FROM unnest(event_seqs, event_types, event_accounts, event_orders, event_data, digests)
        AS numbered (seq, type, account_id, order_id, data, digest)
    WHERE digest IS NOT NULL;

    -- 6. Write the rows of the other changes; first the totals, which need the rows before the change.
    IF head.keeps_exposures AND NOT is_reserved AND cardinality(incoming_orders) > 0 THEN
        PERFORM move_exposures(incoming_orders, order_changes, order_bases, conflicts);
    END IF;

    -- One MERGE for each table that the group has rows of. It finds a row of an earlier version by its place, which one index
    -- lookup gives under any plan, and fails if two changes write the same row. INSERT … ON CONFLICT would look up the new
    -- rows once more, lock them speculatively, and lock the others before it updates them.
    IF cardinality(incoming_orders) > 0 THEN
        MERGE INTO orders AS stored
        USING (
            SELECT *, CASE WHEN order_bases[ordinality] > 0 THEN (
                SELECT own.ctid FROM orders AS own
                WHERE own.order_id = incoming.order_id
            ) END AS place
            FROM unnest(incoming_orders) WITH ORDINALITY AS incoming
            WHERE order_changes[ordinality] <> ALL (conflicts)
        ) AS excluded
        ON stored.ctid = excluded.place
        WHEN MATCHED THEN UPDATE SET {orders.updates}
        WHEN NOT MATCHED THEN INSERT ({orders.columns}) VALUES ({orders.columns});
    END IF;
    IF cardinality(incoming_orders) > 0 THEN
        DELETE FROM unfinished_orders WHERE ctid = ANY (ARRAY(
            SELECT (
                SELECT listed.ctid FROM unfinished_orders AS listed
                WHERE listed.order_id = incoming.order_id
                AND (is_final(incoming.status) OR listed.venue <> incoming.venue)
            )
            FROM unnest(incoming_orders) WITH ORDINALITY AS incoming
            WHERE order_bases[ordinality] > 0 AND order_changes[ordinality] <> ALL (conflicts)
        ));
        INSERT INTO unfinished_orders (order_id, account_id, venue)
        SELECT order_id, account_id, venue FROM unnest(incoming_orders) WITH ORDINALITY AS incoming
        WHERE NOT is_final(status) AND order_changes[ordinality] <> ALL (conflicts)
        AND (order_bases[ordinality] = 0 OR NOT EXISTS (
            SELECT FROM unfinished_orders AS listed WHERE listed.order_id = incoming.order_id
        ));
    END IF;

    IF cardinality(incoming_keys) > 0 THEN
        MERGE INTO idempotency_keys AS stored
        USING (
            SELECT *, CASE WHEN incoming.version - 1 > 0 THEN (
                SELECT own.ctid FROM idempotency_keys AS own
                WHERE (own.account_id, own.operation, own.idempotency_key)
                    = (incoming.account_id, incoming.operation, incoming.idempotency_key)
            ) END AS place
            FROM unnest(incoming_keys) WITH ORDINALITY AS incoming
            WHERE key_changes[ordinality] <> ALL (conflicts)
        ) AS excluded
        ON stored.ctid = excluded.place
        WHEN MATCHED THEN UPDATE SET {idempotency_keys.updates}
        WHEN NOT MATCHED THEN INSERT ({idempotency_keys.columns}) VALUES ({idempotency_keys.columns});
    END IF;

    -- The result of an order that ended, where the key still belongs to that order.
    IF cardinality(incoming_results) > 0 THEN
        MERGE INTO idempotency_keys AS stored
        USING (
            SELECT *, (
                SELECT own.ctid FROM idempotency_keys AS own
                WHERE (own.account_id, own.operation, own.idempotency_key)
                    = (incoming.account_id, incoming.operation, incoming.idempotency_key)
                AND own.order_id = incoming.order_id
            ) AS place
            FROM unnest(incoming_results) WITH ORDINALITY AS incoming
            WHERE result_changes[ordinality] <> ALL (conflicts)
        ) AS result
        ON stored.ctid = result.place
        WHEN MATCHED THEN UPDATE SET
            status = result.status, http_status = result.http_status,
            response_payload_json = result.response_payload_json, result_digest = result.result_digest,
            version = stored.version + 1;
    END IF;

    IF cardinality(incoming_outbox) > 0 THEN
        MERGE INTO outbox_orders AS stored
        USING (
            SELECT incoming.*, CASE WHEN outbox_bases[ordinality] > 0 THEN (
                SELECT own.ctid FROM outbox_orders AS own
                WHERE (own.order_id, own.kind, own.number) = (incoming.order_id, incoming.kind, incoming.number)
            ) END AS place, coalesce(event_seqs[outbox_events[ordinality]], head.seq) AS event_seq
            FROM unnest(incoming_outbox) WITH ORDINALITY AS incoming
            WHERE outbox_changes[ordinality] <> ALL (conflicts)
        ) AS excluded
        ON stored.ctid = excluded.place
        WHEN MATCHED THEN UPDATE SET {outbox_orders.updates}
        WHEN NOT MATCHED THEN INSERT ({outbox_orders.given}, seq) VALUES ({outbox_orders.given}, event_seq);
    END IF;
    IF cardinality(incoming_positions) > 0 THEN
        MERGE INTO positions AS stored
        USING (
            SELECT *, CASE WHEN position_bases[ordinality] > 0 THEN (
                SELECT own.ctid FROM positions AS own
                WHERE (own.account_id, own.symbol) = (incoming.account_id, incoming.symbol)
            ) END AS place
            FROM unnest(incoming_positions) WITH ORDINALITY AS incoming
            WHERE position_changes[ordinality] <> ALL (conflicts)
        ) AS excluded
        ON stored.ctid = excluded.place
        WHEN MATCHED THEN UPDATE SET {positions.updates}
        WHEN NOT MATCHED THEN INSERT ({positions.columns}) VALUES ({positions.columns});
    END IF;
    -- The version check leaves one kind of execution that exists already: a stray report whose order exists now.
    IF cardinality(incoming_executions) > 0 THEN
        MERGE INTO executions AS stored
        USING (
            SELECT *, (
                SELECT own.ctid FROM executions AS own
                WHERE (own.venue, own.exec_id) = (incoming.venue, incoming.exec_id)
            ) AS place
            FROM unnest(incoming_executions) WITH ORDINALITY AS incoming
            WHERE execution_changes[ordinality] <> ALL (conflicts)
        ) AS excluded
        ON stored.ctid = excluded.place
        WHEN MATCHED THEN UPDATE SET {executions.updates}
        WHEN NOT MATCHED THEN INSERT ({executions.columns}) VALUES ({executions.columns});
    END IF;

    IF cardinality(incoming_cursors) > 0 THEN
        INSERT INTO reader_cursors ({reader_cursors.columns})
        SELECT {reader_cursors.columns} FROM unnest(incoming_cursors) WITH ORDINALITY AS incoming
        WHERE cursor_changes[ordinality] <> ALL (conflicts)
        ON CONFLICT ({reader_cursors.key}) DO UPDATE SET {reader_cursors.updates};
    END IF;

    IF kill_row IS NOT NULL THEN
        PERFORM write_kill(kill_row, last_seq);
    END IF;

    -- 7. Store the outcome, for a repeat of the group.
    INSERT INTO append_groups (group_id, seq_before, conflicts, taken, killed, breaches, recorded_at)
    VALUES (new_group_id, seq_before, conflicts, taken, killed, breaches, commit_time);

    -- 8. Advance the head and notify the listeners.
    -- Not for a group that only moves a cursor: readers would wake each other without a new event.
    IF last_seq > head.seq THEN
        head_seq := last_seq;
        UPDATE journal_heads SET seq = head_seq, at = commit_time, hash = head_hash WHERE shard = to_shard;
        PERFORM pg_notify('switchyard', to_shard || ':' || last_seq);
    END IF;

    -- 9. Delete the outcomes that are older than an hour, once per 4096 events: a lost answer is asked for within
    -- seconds.
    IF last_seq / 4096 > head.seq / 4096 THEN
        DELETE FROM append_groups WHERE recorded_at < commit_time - interval '1 hour';
    END IF;
END $$;
