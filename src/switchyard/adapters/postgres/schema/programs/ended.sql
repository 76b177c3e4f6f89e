-- Whether an order with this status has ended, as in domain/lifecycle.py.
CREATE OR REPLACE FUNCTION is_final(status text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN status IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED');
