"""The back office: books the journal's events in a ledger of its own. Run by `bootstrap`; the routes read the books
through it. It sends no order and writes no journal.
"""
