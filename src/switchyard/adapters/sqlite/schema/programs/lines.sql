-- The events with their lines up to the hash, as `head_text` and `members_text` in domain/ write them. A line is not
-- stored: its other members are columns of the event.
DROP VIEW IF EXISTS journal;

CREATE VIEW journal AS
SELECT
    seq, epoch, at, type, account_id, order_id,
    '{"epoch":' || epoch || ',"shard":0,"seq":' || seq || ',"at":"' || at || '","type":"' || type || '","accountId":'
        || json_quote(account_id) || ',"orderId":' || coalesce('"' || order_id || '"', 'null') || ',"data":' || data
        AS text,
    lower(hex(digest)) AS hash
FROM events;
