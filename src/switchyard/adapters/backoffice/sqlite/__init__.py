"""The books and the breaks in SQLite files of their own. Built by `bootstrap/backoffice.py`."""
