"""Keys made of segments agree with keys hashed from the tokens that the segments stand for."""

from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import Chain, block_keys, packed
from sim.prompts_of_runs import Prompt, Segment

LONGEST = 40
segments = st.lists(st.tuples(st.integers(0, 3), st.integers(0, LONGEST)), max_size=6)
salts = st.sampled_from(["", "a", "b"])


def tokens_of(prompt: list[Segment]) -> list[int]:
    return [content * LONGEST + place for content, count in prompt for place in range(count)]


def common(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> list[bool]:
    return [mine == theirs for mine in one for theirs in other]


@given(segments, segments, salts, salts, st.integers(1, 9))
def test_keys_are_equal_where_tokens_are(one, other, salt, other_salt, block_tokens):
    made = [Prompt.root(block_tokens, s).grown(p) for p, s in ((one, salt), (other, other_salt))]
    real = [
        block_keys(Chain.root("m", salt=s), packed(tokens_of(p)), block_tokens)
        for p, s in ((one, salt), (other, other_salt))
    ]
    assert [len(prompt.keys) for prompt in made] == [len(keys) for keys in real]
    assert [prompt.tokens for prompt in made] == [len(tokens_of(p)) for p in (one, other)]
    assert common(made[0].keys, made[1].keys) == common(*real)


@given(segments, segments, segments, st.integers(1, 9))
def test_growing_in_parts_is_growing_at_once(head, one, other, block_tokens):
    root = Prompt.root(block_tokens)
    stem = root.grown(head)
    assert stem.grown(one).keys == root.grown([*head, *one]).keys
    assert stem.grown(other).keys == root.grown([*head, *other]).keys


def test_a_key_has_sixteen_bytes_however_long_the_prompt_is():
    keys = Prompt.root(1).grown([(7, 20_000)]).keys
    assert {len(key) for key in keys} == {16}
    assert len(set(keys)) == 20_000


def test_a_turn_keeps_the_keys_of_the_one_before():
    before = Prompt.root(16).grown([(1, 1_000), (2, 100)])
    after = before.grown([(3, 50)])
    assert all(mine is theirs for mine, theirs in zip(before.keys, after.keys, strict=False))
