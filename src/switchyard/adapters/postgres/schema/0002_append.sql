-- The step that brought the one way to write. It is a program now, put in place anew by every upgrade.
SELECT 1;
