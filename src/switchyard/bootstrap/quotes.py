"""Opens the configured sources of quotes, in every process that needs them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from switchyard.adapters.files.recorded_quotes import RecordedQuotes, UnreadableRecord
from switchyard.adapters.memory.quotes import FixedQuotes
from switchyard.adapters.venues.http.quotes import HttpQuotes
from switchyard.adapters.venues.paper.quotes import PaperQuotes
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.venues import credentials_of, names_at
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.flow.quotes import PolledQuotes
from switchyard.ports.quotes import QuoteSource
from switchyard.settings import VenueSettings

# How long a gateway waits at its start for the first answer of its brokers, so that its first orders find a quote.
FIRST_POLL_SECONDS = 1.0


async def open_quotes(core: Core, stack: AsyncExitStack, *, polls_catalogue: bool) -> None:
    """Add the quotes of every venue to `core.quotes`; polling stops with the stack.

    With `polls_catalogue` a broker is asked all the time for the symbols that are routed to it; otherwise only for
    those that were asked for lately.
    """
    polled: list[PolledQuotes] = []
    for settings in core.settings.venues:
        if settings.quotes == "venue" and settings.url.startswith("http"):
            source = await _open_polled(settings, core, stack, polls_catalogue=polls_catalogue)
            polled.append(source)
            core.quotes.add(settings.name, source)
        elif settings.quotes != "none":
            core.quotes.add(settings.name, await _open_local(settings, core))
    if polls_catalogue and polled:
        first_polls = [asyncio.create_task(source.started()) for source in polled]
        _, late = await asyncio.wait(first_polls, timeout=FIRST_POLL_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def _open_polled(
    settings: VenueSettings, core: Core, stack: AsyncExitStack, *, polls_catalogue: bool
) -> PolledQuotes:
    feed = HttpQuotes(
        settings.name,
        url=settings.url,
        clock=core.clock,
        names=names_at(settings),
        headers=credentials_of(settings),
        note_unasked=core.metrics.unasked_responses.labels(settings.name).inc,
    )
    await feed.start()
    stack.push_async_callback(feed.close)
    source = PolledQuotes(
        settings.name,
        feed,
        listed=_routed_to(settings.name, core) if polls_catalogue else (),
        interval=settings.quotes_poll,
        clock=core.clock,
        metrics=core.metrics,
    )
    core.supervisor.start(stack, f"quotes {settings.name}", source.run)
    return source


async def _open_local(settings: VenueSettings, core: Core) -> QuoteSource:
    if settings.quotes == "venue":
        is_paper = settings.url == "paper:"
        return PaperQuotes(core.catalogue, core.clock) if is_paper else FixedQuotes(core.clock)
    path = Path(settings.quotes.removeprefix("file:"))
    try:
        # A large file takes seconds to read, and the clock must be carried on meanwhile.
        return await asyncio.to_thread(RecordedQuotes, path, clock=core.clock, start=settings.quotes_start)
    except UnreadableRecord as error:
        raise SettingError(f"VENUE_QUOTES_{settings.name.upper()}", str(error)) from None


def _routed_to(venue: VenueName, core: Core) -> list[str]:
    return [symbol for symbol in core.settings.instruments if venue in core.router.route_for(symbol).venues]
