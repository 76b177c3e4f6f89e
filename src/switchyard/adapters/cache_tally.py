"""Counts the lookups and errors of one cache and forwards them to its watch."""

from switchyard.ports.cache import CacheError, CacheWatch


class CacheTally:
    """Hits, lookups and errors since the start."""

    def __init__(self, watch: CacheWatch | None = None) -> None:
        self.hits = 0
        self.lookups = 0
        self.errors = 0
        self._watch = watch

    def looked_up(self, *, hit: bool) -> None:
        """A lookup ended."""
        self.lookups += 1
        self.hits += hit
        if self._watch is not None:
            self._watch.looked_up(hit=hit)

    def failed(self, kind: CacheError, *, times: int = 1) -> None:
        """Something went wrong, for so many entries."""
        self.errors += times
        if self._watch is not None:
            for _ in range(times):
                self._watch.failed(kind)

    def expired(self, entries: int) -> None:
        """So many entries were removed because their time was over."""
        if self._watch is not None:
            self._watch.expired(entries)

    def holds(self, entries: int) -> None:
        """So many entries are there."""
        if self._watch is not None:
            self._watch.holds(entries)
