-- The orders that a venue is believed to have, for the sweep that compares them with what the venue says. Orders that
-- have ended are not in it, so that a million of them cost nothing.
CREATE INDEX orders_open ON orders (venue, order_id)
    WHERE status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED');
