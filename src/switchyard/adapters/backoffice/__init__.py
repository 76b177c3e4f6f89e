"""The books and the breaks in SQL, the same on a SQLite file and in PostgreSQL. Built by `bootstrap/`."""
