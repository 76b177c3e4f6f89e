"""Implementations of `ports`: databases, caches, files, buses, venues. Only `bootstrap` and a few commands import them;
they never import `flow`.
"""
