"""A short soak: everything around the router fails, and the books balance."""

import pytest

from tests.soak import soaked


@pytest.mark.timeout(240)
async def test_the_books_balance_while_everything_around_fails():
    """As `make soak` does for longer: nothing is waited for in vain either."""
    soak, wrong = await soaked(20.0)
    assert wrong == []
    assert soak.tally.ends["lost"] == 0
    assert soak.tally.sent > 100
    assert len(soak.tally.faults) > 1
