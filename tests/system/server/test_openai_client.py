"""The `openai` package from PyPI as the client."""

import asyncio

import pytest
from helpers.server import running_server

openai = pytest.importorskip("openai")
for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    arguments = ("--model", "bundled", "--api-key", "secret")
    with running_server(tmp_path_factory.mktemp("server"), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


def generate(lm, prompt, **options):
    return lm.generate(prompt, **{"temperature": 1.0, "top_k": 0, "max_new_tokens": 16, **options})


FIELDS = [  # fields of the client, additional fields of the body, options of `generate`
    ({"max_tokens": 5}, {}, {"max_new_tokens": 5}),
    ({"temperature": 0.3, "top_p": 0.9}, {}, {"temperature": 0.3, "top_p": 0.9}),
    (
        {"frequency_penalty": 1.5, "presence_penalty": -1},
        {},
        {"frequency_penalty": 1.5, "presence_penalty": -1.0},
    ),
    ({"logit_bias": {"262": -5, "13": 3}}, {}, {"logit_bias": {262: -5.0, 13: 3.0}}),
    ({"n": 3, "best_of": 5}, {}, {"num_return_sequences": 3, "best_of": 5}),
    ({"stop": "a"}, {}, {"stop": "a"}),
    ({"stop": [" the", "."] + [f"stop{i}" for i in range(20)]}, {}, {"stop": [" the", "."]}),
    ({"user": "me"}, {"top_k": 3}, {"top_k": 3}),
    ({}, {"min_p": 0.1, "repetition_penalty": 1.2}, {"min_p": 0.1, "repetition_penalty": 1.2}),
    ({}, {"stop_token_ids": [262, 13]}, {"stop_token_ids": [262, 13]}),
    ({}, {"min_tokens": 8, "ignore_eos": True}, {"min_new_tokens": 8, "ignore_eos": True}),
    ({}, {"bad_words": ["the", "king"]}, {"bad_words": ["the", "king"]}),
    ({}, {"structured_outputs": {"regex": r" \w+\."}}, {"regex": r" \w+\."}),
    ({}, {"structured_outputs": {"choice": [" old", " new"]}}, {"choices": [" old", " new"]}),
    (
        {"stop": ["e"]},
        {"structured_outputs": {"choice": [" old", " new"]}},
        {"stop": ["e"], "choices": [" old", " new"]},
    ),
    *(
        ({}, fields, {"json_schema": schema})
        for fields, schema in (
            ({"structured_outputs": {"json": {"type": "boolean"}}}, {"type": "boolean"}),
            ({"structured_outputs": {"json": '{"type": "null"}'}}, {"type": "null"}),
            ({"structured_outputs": {"json_object": True}}, {"type": "object"}),
            ({"response_format": {"type": "json_object"}}, {"type": "object"}),
            (
                {
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "x", "schema": {"type": "boolean"}},
                    }
                },
                {"type": "boolean"},
            ),
        )
    ),
]


@pytest.mark.parametrize(("fields", "extra", "options"), FIELDS)
def test_every_field(client, lm, fields, extra, options):
    expected = generate(lm, "The king was", seed=11, **options)
    arguments = {"model": "bundled", "prompt": "The king was", "seed": 11, **fields}
    answer = client.completions.create(**arguments, extra_body=extra)
    texts = [c.text for c in (expected, *expected.alternatives)]
    assert [choice.text for choice in answer.choices][: len(texts)] == texts
    if "best_of" in fields:
        return
    chunks = list(client.completions.create(**arguments, extra_body=extra, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    reason = "stop" if expected.finish_reason == "eos" else expected.finish_reason
    assert answer.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == reason


def test_echo_and_logprobs(client, lm):
    answer = client.completions.create(
        model="bundled", prompt="The king", echo=True, logprobs=3, max_tokens=2, seed=1
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens[:2] == ["The", " king"]
    assert logprobs.token_logprobs[0] is None
    score = lm.score("The king", from_end_of_text=False)
    assert logprobs.token_logprobs[1] == pytest.approx(score.logprobs[1])
    assert len(logprobs.top_logprobs[1]) in (3, 4)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["bundled"]


def test_errors(client, server):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="bundled", prompt="a", temperature=-1)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="none", prompt="a")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError, match="template"):
        client.chat.completions.create(model="bundled", messages=[{"role": "user", "content": "a"}])


def test_many_asynchronous_calls(server, lm):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret") as client:
            return await asyncio.gather(
                *(
                    client.completions.create(model="bundled", prompt="The king", seed=i)
                    for i in range(40)
                )
            )

    texts = [answer.choices[0].text for answer in asyncio.run(ask_all())]
    assert texts == [generate(lm, "The king", seed=i).text for i in range(40)]
