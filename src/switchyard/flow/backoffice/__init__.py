"""The back office: books the journal's events in a ledger of its own."""
