"""The books and the breaks in SQL, on a SQLite file or in PostgreSQL. Built by `bootstrap/backoffice.py`."""
