-- Creates the segment (partition of `events`) that holds this seq, unless it exists.
CREATE OR REPLACE FUNCTION ensure_segment(for_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    segment_length CONSTANT bigint := 1000000;
    segment_number bigint := for_seq / segment_length;
    segment_name text := 'events_' || lpad(segment_number::text, greatest(6, length(segment_number::text)), '0');
BEGIN
    IF to_regclass(segment_name) IS NOT NULL THEN
        RETURN;
    END IF;
    -- Two shards may need the same segment at once: the second one waits and finds it.
    PERFORM pg_advisory_xact_lock(hashtext('switchyard'), 2);
    IF to_regclass(segment_name) IS NOT NULL THEN
        RETURN;
    END IF;
    -- CREATE TABLE … PARTITION OF would wait for every reader of the journal; ATTACH PARTITION does not.
    EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING ALL)', segment_name);
    EXECUTE format(
        'ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
        segment_name, segment_number * segment_length, (segment_number + 1) * segment_length
    );
END $$;

SELECT ensure_segment(0);
