-- The server's wall clock. A function of its own, so that a test can step the clock for every process of a database.
CREATE OR REPLACE FUNCTION wall_clock() RETURNS timestamptz VOLATILE LANGUAGE sql AS 'SELECT clock_timestamp()';
