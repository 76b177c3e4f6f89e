"""Strategies, their health, and the requests that recheck it."""
