"""Breakers, quality and choice of venues, signs of a second installation, and readiness. Shared by intake, sending and
executions of one process; the API shows it.
"""
