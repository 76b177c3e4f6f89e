-- The outbox under the column names of its specification, for operators and dashboards. The code does not read it.
DROP VIEW IF EXISTS outbox;
CREATE VIEW outbox AS
SELECT
    message.order_id || ':' || message.kind || ':' || message.number AS id,
    message.venue_client_order_id AS idempotency_key,
    coalesce(message.payload::json, json_build_object(
        'client_order_id', message.venue_client_order_id, 'symbol', symbol, 'intent', side, 'qty', qty, 'type', type,
        'time_in_force', time_in_force, 'limit_price', price, 'stop_price', stop_price,
        'trace_id', coalesce(trace_id, message.order_id)
    )) AS request_json,
    message.status,
    greatest(message.attempt - 1, 0) AS retry_count,
    message.next_attempt_at,
    message.last_error,
    message.created_at,
    message.updated_at
FROM outbox_orders AS message JOIN orders USING (order_id);
