"""A short soak: everything around the router fails, and nothing is lost."""

import pytest

from tests.soak import soaked


@pytest.mark.xfail(strict=False, reason="a request that meets a hanging replica sometimes outlasts first_byte_s")
@pytest.mark.timeout(180)
async def test_nothing_is_lost_while_everything_around_fails():
    soak, wrong = await soaked(20.0)
    assert wrong == []
    assert soak.tally.sent > 100
    assert len(soak.tally.faults) > 1
