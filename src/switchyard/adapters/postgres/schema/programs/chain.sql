-- The hash of a line, as `link` in domain/chain.py. The first line of a group continues from the head of the journal.
CREATE OR REPLACE FUNCTION chain_link(state text, head_hash text, line text) RETURNS text
IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN encode(sha256(convert_to(coalesce(state, head_hash) || line, 'UTF8')), 'hex');
END $$;

CREATE OR REPLACE AGGREGATE chain_hash(head_hash text, line text) (SFUNC = chain_link, STYPE = text);
