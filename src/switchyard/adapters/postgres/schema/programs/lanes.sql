-- Shares the lanes among the workers that live: each calls this every now and then and is told which are its own.
--
-- A worker is alive while its lock is held and it still calls. One that is paused keeps its lock, and its lanes would stand
-- still; losing them is harmless, because versions guard the rows and only the order of departure is at stake.
CREATE OR REPLACE FUNCTION hold_lanes(
    me text,
    my_lock bigint,
    given_up integer[],
    patience interval,
    OUT lanes integer[],
    OUT share integer -- what is fair to have; the caller gives up the rest once nothing is under way there
) LANGUAGE plpgsql AS $$
DECLARE
    lane_count integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('switchyard'), 3);
    DELETE FROM outbox_workers
    WHERE worker <> me AND (seen_at < clock_timestamp() - patience OR pg_try_advisory_xact_lock_shared(lock_key));
    INSERT INTO outbox_workers VALUES (me, my_lock, clock_timestamp())
    ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at;
    UPDATE outbox_lanes SET worker = NULL
    WHERE worker = me AND lane = ANY (given_up) OR worker NOT IN (SELECT known.worker FROM outbox_workers AS known);

    SELECT count(*) INTO lane_count FROM outbox_lanes;
    SELECT ceil(lane_count::numeric / count(*)) INTO share FROM outbox_workers;
    UPDATE outbox_lanes SET worker = me WHERE lane IN (
        SELECT free.lane FROM outbox_lanes AS free WHERE free.worker IS NULL ORDER BY free.lane
        LIMIT greatest(share - (SELECT count(*) FROM outbox_lanes AS mine WHERE mine.worker = me), 0)
    );
    lanes := ARRAY(SELECT mine.lane FROM outbox_lanes AS mine WHERE mine.worker = me ORDER BY mine.lane);
END $$;
