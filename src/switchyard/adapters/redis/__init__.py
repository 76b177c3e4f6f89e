"""The idempotency cache, rate limits, and a copy of the head on Redis. Built by `bootstrap`. Every failure is a cache
miss or a local decision, never a lost order.
"""
