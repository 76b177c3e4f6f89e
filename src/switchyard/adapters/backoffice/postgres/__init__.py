"""The books and the breaks in the PostgreSQL database of the journal. Built by `bootstrap/backoffice.py`."""
