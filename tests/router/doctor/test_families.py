from hypothesis import given
from hypothesis import strategies as st

from router.doctor.families import Families, chunks, common_chars, hashed
from router.doctor.parts import asked
from tests.router.doctor.traffic import CHAT, broken, chats


@given(st.text())
def test_chunks_lose_nothing(text):
    assert "".join(chunks(text)) == text


@given(st.text(alphabet="ab.\n", min_size=600))
def test_chunks_are_found_again_behind_other_text(text):
    ends = set(chunks(text))
    assert ends & set(chunks("x\n" + text))


@given(st.text(), st.text(), st.text())
def test_common_prefix(head, a, b):
    same = common_chars(head + a, head + b)
    assert same >= len(head)
    assert (head + a)[:same] == (head + b)[:same]
    assert (head + a)[same : same + 1] != (head + b)[same : same + 1] or same == min(len(head + a), len(head + b))


def test_lone_surrogates_are_hashed():
    assert hashed("\ud800") != hashed("\ud801")


def test_growing_chats_repeat_all_but_the_new_message():
    families = Families()
    for number, body in enumerate(chats(users=2, turns=3)):
        placed = families.placed(asked(CHAT, body), 0.03)
        assert placed.partner is None
        if number >= 2:
            ask = asked(CHAT, body)
            assert placed.prefix_chars >= ask.chars - len(ask.parts[-1].text) - len(ask.parts[-2].text)
    assert placed.family == 1


def test_a_broken_prefix_has_a_partner_that_shares_the_rest():
    families = Families()
    for number, body in enumerate(broken("clock")):
        ask = asked(CHAT, body)
        placed = families.placed(ask, 0.03)
        assert (placed.partner is not None) == (number > 0)
        if number:
            assert placed.shared_chars > 0.5 * ask.chars


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("router.doctor.families._KEPT_CHARS", 20_000)
    monkeypatch.setattr("router.doctor.families._CHUNKS", 100)
    monkeypatch.setattr("router.doctor.families._CHAINS", 100)
    families = Families()
    for body in chats(users=20, turns=2):
        families.placed(asked(CHAT, body), 0.03)
    assert len(families._chunks) <= 100
    assert len(families._chains) <= 100
    assert families._kept_chars <= 20_000
