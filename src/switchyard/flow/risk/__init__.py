"""Checks of new orders before they are accepted, and what they claim of their account's limits. Called by `flow/intake`
and by the routes that show exposure.
"""
