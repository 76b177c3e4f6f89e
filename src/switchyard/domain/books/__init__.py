"""The ledger of the back office: append-only double entry, and the positions and balances that follow from it. Used by
`flow/backoffice`, `flow/reconcile` and the stores of the books.
"""
