"""`switchyard demo`: a trading day with faults, on real processes that it starts and ends. Uses `client` as a user
would.
"""
