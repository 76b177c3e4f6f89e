"""The span port: one step of a request that is traced (`ports/tracing.py`)."""

from typing import Protocol

AttributeValue = str | int | float | bool


class Span(Protocol):
    """One step of a request; no call of it waits or raises."""

    @property
    def traceparent(self) -> str | None:
        """The span as the parent of others, in W3C form; none where its trace is not recorded."""
        ...

    def set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute; `name` is whole, such as `switchyard.order_id`."""
        ...

    def fail(self, reason: str) -> None:
        """Mark the step as failed; the reason is a code, never a text that may hold personal data."""
        ...

    def end(self) -> None:
        """End the step; it is exported later, or dropped."""
        ...
