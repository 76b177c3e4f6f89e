-- The hash of a line, as `link` in domain/journal/lines.py.
CREATE OR REPLACE FUNCTION chain_digest(previous_hash text, line text) RETURNS bytea STABLE LANGUAGE sql AS $$
    SELECT sha256(convert_to(previous_hash || line, 'UTF8'))
$$;
