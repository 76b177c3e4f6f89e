"""The life of an order in words that a trader understands, from its events. Pure."""

from switchyard.domain.explain.explanation import EVENTS_MAX, Explanation, Step, explain_order

__all__ = ["EVENTS_MAX", "Explanation", "Step", "explain_order"]
