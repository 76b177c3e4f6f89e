-- Shares the lanes among the live workers. Each worker calls this periodically and gets the lanes that it owns.
--
-- A worker is live while its advisory lock is held and it keeps calling. A paused process keeps its lock, and its
-- lanes would not be sent. The callers judge by their monotonic clocks which worker is silent, because the server's
-- clock can be stepped. Taking them from a live worker is safe: row versions reject its late writes, and only the
-- order of departure may change.
--
-- Workers that declare different capabilities of one venue must not run at the same time: one of them may send again what
-- the other must not. The first one keeps running; a later one, or one that was silent meanwhile, holds nothing and ends.
CREATE OR REPLACE FUNCTION hold_lanes(
    for_worker text,
    worker_lock_key bigint,
    given_up integer[],
    silent_workers text[],
    silent_beats bigint[], -- of the silent workers; one that has called since is not silent any more
    own_declared jsonb, -- what this worker's settings say of each venue: text by name
    OUT lanes integer[],
    OUT share integer, -- the fair share; the worker gives up the rest as soon as no send is in progress there
    OUT workers text[],
    OUT beats bigint[], -- of the workers
    OUT other_worker text, -- a live worker that declares a venue differently; this one is then not registered
    OUT other_declared jsonb -- of that worker
) LANGUAGE plpgsql AS $$
DECLARE
    lane_count integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('switchyard'), 3);

    -- 1. Register this worker; remove the silent workers and those whose lock is free.
    DELETE FROM outbox_workers WHERE worker <> for_worker
    AND ((worker, beat) IN (SELECT * FROM unnest(silent_workers, silent_beats))
        OR pg_try_advisory_xact_lock_shared(lock_key));
    SELECT known.worker, known.declared INTO other_worker, other_declared FROM outbox_workers AS known
    WHERE known.worker <> for_worker AND EXISTS (
        SELECT FROM jsonb_each_text(known.declared) AS theirs WHERE own_declared ->> theirs.key <> theirs.value
    )
    ORDER BY known.worker LIMIT 1;
    IF other_worker IS NULL THEN
        INSERT INTO outbox_workers AS known (worker, lock_key, beat, declared)
        VALUES (for_worker, worker_lock_key, 1, own_declared)
        ON CONFLICT (worker) DO UPDATE SET beat = known.beat + 1;
    END IF;
    SELECT array_agg(worker), array_agg(beat) INTO workers, beats FROM outbox_workers;
    IF other_worker IS NOT NULL THEN
        RETURN;
    END IF;

    -- 2. Free the lanes that this worker gives up, and those of removed workers.
    UPDATE outbox_lanes SET worker = NULL
    WHERE worker = for_worker AND lane = ANY (given_up)
    OR worker NOT IN (SELECT known.worker FROM outbox_workers AS known);

    -- 3. Take free lanes up to the fair share.
    SELECT count(*) INTO lane_count FROM outbox_lanes;
    SELECT ceil(lane_count::numeric / count(*)) INTO share FROM outbox_workers;
    UPDATE outbox_lanes SET worker = for_worker WHERE lane IN (
        SELECT free.lane FROM outbox_lanes AS free WHERE free.worker IS NULL ORDER BY free.lane
        LIMIT greatest(share - (SELECT count(*) FROM outbox_lanes AS own WHERE own.worker = for_worker), 0)
    );
    lanes := ARRAY(SELECT own.lane FROM outbox_lanes AS own WHERE own.worker = for_worker ORDER BY own.lane);
END $$;
