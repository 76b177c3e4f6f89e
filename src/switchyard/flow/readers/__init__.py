"""Readers of the journal: event streams, the audit file, copies of the head. Run by `bootstrap`; the routes subscribe
to streams. Readers write no orders and can be rebuilt.
"""
