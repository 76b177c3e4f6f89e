"""Adapters that keep everything in the process: the caches and rate limits of a single process, and the null venue."""
