"""Reconciliation: compares the books with the gateway and the venues, pass by pass, and keeps the breaks."""
