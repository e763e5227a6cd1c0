"""Every path the router knows: salted, without need of a salt, or refused."""

import pytest

from router.errors import BadRequest, NotSalted
from router.http.messages import Call
from router.openai import FORM_ROUTES, ROUTES, asked
from router.prompt_bodies import NOT_RUN
from router.salted_paths import SALTED, SALTLESS, SaltedPaths

BODY = b'{"model":"m","input":"x","cache_salt":"theirs"}'


def after(path: str, body: bytes = BODY, shared: tuple[str, ...] = ()) -> bytes:
    call = Call.of(b"POST", path.encode(), [], body, b"a", "1.2.3.4")
    return SaltedPaths(shared).salted(call, asked(call), "ours").body


@pytest.mark.parametrize("path", ROUTES)
def test_no_known_path_runs_unsalted(path):
    if path in SALTED:
        assert after(path).endswith(b',"cache_salt":"ours"}')
        assert b"theirs" not in after(path)
    elif path in SALTLESS:
        assert after(path) == b'{"model":"m","input":"x"}'
    else:
        with pytest.raises(NotSalted, match="shared_paths"):
            after(path)


def test_only_what_runs_nothing_goes_without():
    assert SALTLESS == NOT_RUN
    assert not SALTED & SALTLESS
    assert not (SALTED | SALTLESS) & FORM_ROUTES


@pytest.mark.parametrize(
    "path",
    ["/v1/chat%2Fcompletions", "/v1/%63hat/completions?a=b", "/inference/v1/generate", "/v1/chat/completions/batch"],
)
def test_a_path_is_what_the_replica_takes_it_for(path):
    assert after(path).endswith(b',"cache_salt":"ours"}')


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/V1/chat/completions", "/v1/unknown", "/"])
def test_a_path_that_is_not_known_is_refused(path):
    with pytest.raises(NotSalted):
        after(path)


def test_a_shared_path_is_the_operators_word():
    form = b"--xx\r\n"
    assert after("/v1/audio/transcriptions", form, ("/v1/audio/transcriptions",)) == form
    assert after("/v1/unknown", BODY, ("/v1/unknown",)) == b'{"model":"m","input":"x"}'
    with pytest.raises(NotSalted):
        after("/v1/unknown", BODY, ("/v1/other",))


def test_a_body_that_can_not_be_salted_is_refused():
    with pytest.raises(BadRequest, match="not a JSON object"):
        after("/inference/v1/generate", b"\x00\x01")
    with pytest.raises(BadRequest, match="kv_transfer_params"):
        after("/v1/completions", b'{"prompt":"x","kv_transfer_params":{"prompt_token_ids":[1]}}')
    with pytest.raises(BadRequest, match="kv_transfer_params"):
        after("/tokenize", b'{"prompt":"x","kv_transfer_params":{"prompt_token_ids":[1]}}')
