"""The page of the order's states shows the lifecycle table of today."""

from tests.support.order_states import PAGE, page


def test_the_page_shows_the_lifecycle_table() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.support.order_states"
