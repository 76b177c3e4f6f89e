"""The journal and the read-only queries on one SQLite file: the schema, the append, the writer thread. Built by
`bootstrap/databases.py`; the connections also serve other SQLite files.
"""
