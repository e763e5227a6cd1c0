"""Values can't be changed, and a policy needs nothing of ours."""

from collections.abc import Sequence

import pytest

from policies import Choice, Policy, Replica, Request
from policies.conformance import sample_replicas, sample_request


def test_a_view_can_not_be_changed_by_a_policy() -> None:
    with pytest.raises(AttributeError):
        sample_replicas()[0].in_flight = 0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        sample_request().user = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Choice("r1", "load").replica = "r2"  # type: ignore[misc]


def test_what_an_engine_did_not_say_is_unknown() -> None:
    replica = Replica("r1", 0, 0, 0, 0, 0, None, 1.0)
    assert (replica.engine_running, replica.engine_waiting, replica.engine_kv_used_fraction) == (None, None, None)
    assert replica.report_age_s is None


def test_any_object_that_chooses_is_a_policy() -> None:
    class First:
        def choose(self, request: Request, replicas: Sequence[Replica]) -> Choice:
            return Choice(replicas[0].name, "first")

    policy: Policy = First()
    assert policy.choose(sample_request(), sample_replicas()) == Choice("r0", "first")
