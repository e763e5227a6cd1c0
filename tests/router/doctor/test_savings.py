from router.doctor.edits import Edit
from router.doctor.parts import asked
from router.doctor.savings import parting, prompt_of, replayed, written
from tests.router.doctor.traffic import CHAT, hits


def ask(text, **members):
    return asked(CHAT, {"messages": [{"role": "system", "content": text}], **members})


def test_a_prompt_without_a_tokenizer_is_its_bytes():
    tokens, blocks = prompt_of(ask("x" * 256), None, 16)
    assert tokens == len(written(ask("x" * 256))) / 4
    assert len(blocks) == tokens // 16


def test_roots_part_chains():
    keys = {prompt_of(ask("x" * 256, **more), None, 16)[1][0] for more in ({}, {"model": "m"}, {"cache_salt": "s"})}
    assert len(keys) == 3


def test_tokens_of_a_tokenizer_count():
    assert prompt_of(ask("x"), lambda route, body: list(range(33)), 16)[0] == 33
    assert prompt_of(ask("xxxx"), lambda route, body: None, 16) == prompt_of(ask("xxxx"), None, 16)


def test_a_replay_with_and_without_the_edit():
    rules = "be kind. " * 40
    sample = [ask(f"now {number}\n{rules}") for number in range(5)]
    total, before = replayed(sample, (), hits, tokens=None, block_tokens=16)
    _, after = replayed(
        sample, [Edit("counter", "messages[0].content", "now ", "\nbe")], hits, tokens=None, block_tokens=16
    )
    assert (before, total > 400) == (0, True)
    assert after > 300


def test_exact_parting_and_how_much_further_an_edit_goes():
    def tokens(route, body):
        return [ord(char) for char in body["messages"][0]["content"]]

    edit = Edit("counter", "messages[0].content", "now ", "\nbe")
    pair = (ask("now 1\nbe kind"), ask("now 2\nbe kind"))
    assert parting(pair, [edit], tokens) == (4, len("now \nbe kind\n") - 4)
    assert parting(pair, [], tokens) == (4, 0)
    assert parting(pair, [edit], lambda route, body: None) is None
