-- Whether the journal, up to this number, ends with this hash. The number of an epoch's first head has no event of its
-- own: its hash is that of the last event before it.
CREATE OR REPLACE FUNCTION has_line(of_shard integer, at_seq bigint, with_hash text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    found_hash text;
BEGIN
    SELECT hash INTO found_hash FROM journal WHERE shard = of_shard AND seq = at_seq;
    IF NOT FOUND THEN
        SELECT hash INTO found_hash FROM journal WHERE shard = of_shard AND seq <= at_seq ORDER BY seq DESC LIMIT 1;
    END IF;
    RETURN coalesce(found_hash, repeat('0', 64)) = with_hash;
END $$;
