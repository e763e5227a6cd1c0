"""The packages people really call a router with, `openai` and `anthropic`, through a router over emulated replicas."""

import json
from contextlib import AsyncExitStack

import anthropic
import openai
import pytest

from router.app import running
from router.config import load
from router.readers import TINY, local_reader
from sim import emulator
from sim.cost import DEFAULT_PROFILE, PROFILES

SYSTEM = "You are a careful assistant who answers in short sentences. " * 20
QUESTION = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Where do blocks go?"}]
JSON = {"Content-Type": "application/json"}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@pytest.fixture
async def router():
    """A router over two emulated replicas that serve the model `tiny`."""
    reader = local_reader(TINY, block_tokens=16)
    async with AsyncExitStack() as stack:
        urls = []
        for name in ("r1", "r2"):
            replica = await emulator.start(
                "127.0.0.1",
                0,
                name=name,
                model="tiny",
                blocks=2000,
                block_tokens=16,
                profile=PROFILES[DEFAULT_PROFILE],
                speed=100.0,
                tokenize=reader.token_ids,
                detokenize=reader.tokenizer.decode,
            )
            stack.push_async_callback(replica.close)
            urls.append(replica.url)
        flags = {"listen.port": 0, "admin.port": 0, "replicas": ",".join(urls), "tokenizer.path": str(TINY)}
        config, _ = load(flags={name: ("test", value) for name, value in flags.items()})
        up = await stack.enter_async_context(running(config))
        await up.readers.ready()
        yield up


@pytest.fixture
async def client(router):
    """OpenAI's client: no retries, and no proxies or keys of the environment."""
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=20, http_client=http
    ) as opened:
        yield opened


@pytest.fixture
async def claude(router):
    """Anthropic's client, the same way."""
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    async with anthropic.AsyncAnthropic(
        base_url=router.url, api_key="none", max_retries=0, timeout=20, http_client=http
    ) as opened:
        yield opened


async def test_chat_twice_finds_its_prefix(client):
    first = await client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=8)
    again = await client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=8)
    assert first.choices[0].message.content == again.choices[0].message.content != ""
    assert first.choices[0].finish_reason == "length"
    assert first.usage.completion_tokens == 8
    assert first.usage.prompt_tokens == again.usage.prompt_tokens > 200
    assert again.usage.prompt_tokens_details.cached_tokens == (first.usage.prompt_tokens - 1) // 16 * 16


async def test_chat_streams_with_usage(client):
    whole = await client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=8)
    stream = await client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [8]
    assert chunks[-1].choices == []


async def test_a_forced_tool_is_called(client):
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    answer = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Is it raining in Oslo?"}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=16,
    )
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "weather"
    assert isinstance(json.loads(call.function.arguments), dict)


async def test_completions(client):
    answer = await client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=5)
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 5


async def test_a_prompt_of_token_ids(client):
    answer = await client.completions.create(model="tiny", prompt=[5, 6, 7, 8], max_tokens=3)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 3)


async def test_embeddings(client):
    answer = await client.embeddings.create(model="tiny", input=["one", "two"], encoding_format="float")
    assert [entry.index for entry in answer.data] == [0, 1]
    assert answer.data[0].embedding != answer.data[1].embedding


async def test_models(client):
    assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_responses(client):
    answer = await client.responses.create(model="tiny", input="Say something.", max_output_tokens=6)
    assert answer.output_text
    assert answer.usage.output_tokens == 6


async def test_responses_stream(client):
    stream = await client.responses.create(model="tiny", input="Say something.", max_output_tokens=6, stream=True)
    events = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text
    assert events[-1].response.output_text == text


async def test_messages(claude):
    answer = await claude.messages.create(
        model="tiny", system=SYSTEM, messages=[{"role": "user", "content": "Hello"}], max_tokens=7
    )
    assert answer.content[0].text
    assert answer.usage.output_tokens == 7


async def test_messages_stream(claude):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 7}
    whole = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == 7


async def test_count_tokens(claude):
    messages = [{"role": "user", "content": "Hello"}]
    short = await claude.messages.count_tokens(model="tiny", messages=messages)
    long = await claude.messages.count_tokens(model="tiny", messages=messages, system=SYSTEM)
    assert 0 < short.input_tokens < long.input_tokens


async def test_an_unknown_model_lists_what_is_served(client, claude):
    with pytest.raises(openai.NotFoundError, match="tiny") as told:
        await client.chat.completions.create(model="nope", messages=QUESTION)
    assert told.value.code == "model_not_found"
    with pytest.raises(anthropic.NotFoundError, match="tiny"):
        await claude.messages.create(model="nope", messages=[{"role": "user", "content": "x"}], max_tokens=1)


async def test_a_body_the_replica_refuses_is_relayed(client):
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=-1)


async def test_a_body_that_is_no_object_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="JSON"):
        await client.post("/chat/completions", cast_to=object, content=b"[1, 2", options={"headers": JSON})


async def test_no_replica_left_says_when_to_come_back(client, router):
    for state in router.watcher.states():
        router.fleet.closed(state.name)
    with pytest.raises(openai.InternalServerError) as told:
        await client.chat.completions.create(model="tiny", messages=QUESTION)
    assert told.value.status_code == 503
    assert told.value.code == "no_replica_available"
    assert int(told.value.response.headers["Retry-After"]) > 0
