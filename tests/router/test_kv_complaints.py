"""Each kind of trouble is said once, and again after five minutes, however often it comes."""

from router.kv_complaints import QUIET_S, Complaints


def test_once_and_again_after_a_while():
    complaints = Complaints()
    said = [now_s for now_s in range(1000) if complaints.due("foreign", float(now_s))]
    assert said == [0, QUIET_S, 2 * QUIET_S, 3 * QUIET_S]


def test_each_kind_by_itself():
    complaints = Complaints()
    assert [complaints.due(kind, 5.0) for kind in ("replay", "foreign", "replay")] == [True, True, False]
