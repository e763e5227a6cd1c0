from router.doctor.findings import Diagnosis, kinds
from tests.router.doctor.traffic import broken, chats, diagnosed


def test_a_diagnosis_breaks_when_one_finding_does():
    healthy, ill = diagnosed(chats()), diagnosed(broken("clock"))
    assert (healthy.breaks, ill.breaks) == (False, True)
    assert (kinds(healthy), kinds(ill)) == ({}, {"timestamp": 1})
    assert not Diagnosis(0, 0, False, 16, None, ()).breaks
