"""Metrics, logs and the trace of the current task. Every layer above `ports` may call it; it calls no network."""
