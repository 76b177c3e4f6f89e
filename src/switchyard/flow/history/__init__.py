"""Replays and verifies an audit file, rebuilds a database from it, and accepts a restored one. Called by the command
line and by the start of a process.
"""
