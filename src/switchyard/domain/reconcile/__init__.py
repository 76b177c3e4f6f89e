"""Reconciliation: pure comparisons of the books with other records, and the states of a break. Used by `flow/reconcile`
and its store.
"""
