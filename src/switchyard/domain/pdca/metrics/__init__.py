"""The figures of a recheck, pure: from the fills and orders of one strategy to metrics and its health."""
