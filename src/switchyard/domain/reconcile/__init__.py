"""Reconciliation: pure comparisons of the books with what others say, and the life of a break."""
