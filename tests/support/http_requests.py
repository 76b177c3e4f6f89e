"""The HTTP requests that a server in the test's own process is working on."""

import asyncio


def requests_in_progress() -> int:
    """Count uvicorn's request tasks in this event loop: one per request, from its headers to its handler's end."""
    return sum("RequestResponseCycle.run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())
