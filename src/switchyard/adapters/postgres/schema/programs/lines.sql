-- The line of an event up to its hash, as `head_text` and `members_text` in domain/ write it. A line is not stored: its
-- members are columns of the event.
CREATE OR REPLACE FUNCTION head_text(epoch integer, shard integer, seq bigint, at_text text) RETURNS text
STABLE LANGUAGE sql AS $$
    SELECT '{"epoch":' || epoch || ',"shard":' || shard || ',"seq":' || seq || ',"at":"' || at_text || '",'
$$;

CREATE OR REPLACE FUNCTION members_text(type text, account_id text, order_id text, data text) RETURNS text
STABLE LANGUAGE sql AS $$
    SELECT '"type":"' || type || '","accountId":' || to_json(account_id) || ',"orderId":'
        || coalesce('"' || order_id || '"', 'null') || ',"data":' || data
$$;

CREATE OR REPLACE FUNCTION time_text(at timestamptz) RETURNS text STABLE LANGUAGE sql AS $$
    SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

CREATE OR REPLACE VIEW journal AS
SELECT
    shard, seq, epoch, at, type, account_id, order_id,
    head_text(epoch, shard, seq, time_text(at)) || members_text(type, account_id, order_id, data) AS text,
    encode(digest, 'hex') AS hash
FROM events;
