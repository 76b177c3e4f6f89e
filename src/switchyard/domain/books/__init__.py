"""The ledger of the back office: append-only double entry, and the positions and balances that follow from it."""
