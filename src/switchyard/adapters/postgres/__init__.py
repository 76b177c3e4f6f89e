"""The journal and the read-only queries on PostgreSQL: the schema, the append as a server function, the standby's
barrier. Built by `bootstrap/databases.py`; the connections also serve the books and the PDCA store.
"""
