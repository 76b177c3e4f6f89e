"""Reconciliation: compares the books with the gateway and the venues, pass by pass, and keeps the breaks. Run by
`bootstrap` in the back office; the routes start a pass and read breaks.
"""
