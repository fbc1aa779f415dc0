"""Details of OpenAI's protocol and of HTTP on which clients rely."""

import json

import pytest

from gpt2np.server.protocol import REFUSED, CompletionRequest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


class TestHttp:
    def test_a_model_is_described_by_its_name(self, client):
        [model] = client.get("/v1/models").json()["data"]
        assert client.get("/v1/models/bundled").json() == model
        for name in ("openai-community/gpt2", "a/b/c", "bundled/"):
            response = client.get(f"/v1/models/{name}")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"

    def test_only_models_are_not_found_as_models(self, client):
        for path in ("/v2", "/playground/none.js", "/v1"):
            response = client.get(path)
            assert response.status_code == 404
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"} and error["code"] is None

    def test_responses_have_an_id(self, client):
        ids = []
        for path in ("/health", "/v1/models", "/none"):
            ids.append(client.get(path).headers["X-Request-Id"])
        response = client.post(COMPLETIONS, json={"max_tokens": 1})
        ids.append(response.headers["X-Request-Id"])
        assert response.json()["id"] == f"cmpl-{ids[-1]}"
        assert len(set(ids)) == 4

    def test_a_clients_own_id_comes_back_if_it_is_short_and_plain(self, client):
        headers = {"X-Request-Id": "mine-1"}
        response = client.post(COMPLETIONS, json={"max_tokens": 1}, headers=headers)
        assert response.headers["X-Request-Id"] == "mine-1"
        assert response.json()["id"] == "cmpl-mine-1"
        for wrong in ("a b", "<b>", "a" * 129, ""):
            response = client.get("/none", headers={"X-Request-Id": wrong})
            assert len(response.headers["X-Request-Id"]) == 32

    def test_other_methods_are_named(self, client):
        response = client.get(COMPLETIONS)
        assert response.status_code == 405
        assert response.headers["Allow"] == "POST"
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_an_error_within_a_stream_names_the_field_that_was_sent(client):
    ids = client.post("/tokenize", json={"prompt": "!"}).json()["tokens"]
    body = {"structured_outputs": {"choice": ["a b c!"]}, "stop_token_ids": ids}
    body |= {"min_tokens": 16}
    with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert error["param"] == "min_tokens"
    assert "every token is ruled out" in error["message"]


def complete(client, **body):
    response = client.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


class TestValues:
    def test_filters_have_no_effect_at_temperature_0(self, client):
        filters = {"top_k": 5, "top_p": 0.5, "min_p": 0.2}
        [found] = complete(client, prompt="The fox", temperature=0, **filters)
        [expected] = complete(client, prompt="The fox", temperature=0)
        assert found["text"] == expected["text"]

    def test_null_is_the_default(self, client):
        null = dict.fromkeys({*CompletionRequest.model_fields, *REFUSED, "skip_special_tokens"})
        assert complete(client, **null)[0]["text"]
        neutral = {"prompt": "The fox", "max_tokens": 2, **REFUSED}
        assert complete(client, **{**null, **neutral})[0]["text"]

    @pytest.mark.parametrize(
        ("fields", "same"),
        [
            ({"stop": ""}, {}),
            ({"stop": []}, {}),
            ({"max_tokens": 4.0, "seed": 1.0, "n": 2.0}, {"max_tokens": 4, "n": 2}),
            ({"logprobs": 1.0, "top_k": 5.0}, {"logprobs": 1, "top_k": 5}),
            ({"guided_regex": None, "tools": [], "truncation_side": "left"}, {}),
        ],
        ids=str,
    )
    def test_fields_mean_the_same(self, client, fields, same):
        both = [
            complete(client, **{"prompt": "The fox", "seed": 1, "max_tokens": 6, **more})
            for more in (fields, same)
        ]
        assert both[0] == both[1]

    def test_negative_seeds_differ(self, client):
        seeds = (-1, -2, -(2**63), 1)
        fields = {"prompt": "The fox", "max_tokens": 6}
        texts = [complete(client, seed=seed, **fields)[0]["text"] for seed in (*seeds, *seeds)]
        assert texts[:4] == texts[4:]
        assert len(set(texts)) == 4


PARAMETERS = {"type": "object", "properties": {"a": {"enum": [1, 2, 30]}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]


class TestChat:
    def test_optional_parts(self, chat_client):
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "user", "content": "Who?"},
        ]
        tools = [{"type": "function", "function": {"name": "f"}}]
        fields = {"tools": tools, "tool_choice": "none", "logprobs": None}
        body = {"messages": messages, "max_tokens": 2, **fields}
        assert chat_client.post(CHAT, json=body).status_code == 200

    def test_messages_can_be_tokenized(self, chat_client):
        messages = [{"role": "user", "content": "Hi"}]
        answer = chat_client.post("/tokenize", json={"messages": messages}).json()
        body = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        assert answer["tokens"] == chat_client.post(CHAT, json=body).json()["prompt_token_ids"]
        body = {"messages": messages, "add_generation_prompt": False}
        assert len(chat_client.post("/tokenize", json=body).json()["tokens"]) < answer["count"]

    @pytest.mark.parametrize(
        ("tool_choice", "finish_reason"), [("required", "tool_calls"), (TOOLS[0], "stop")]
    )
    def test_a_forced_function_is_called(self, chat_client, tool_choice, finish_reason):
        messages = [{"role": "user", "content": "Hi"}]
        fields = {"tools": TOOLS, "tool_choice": tool_choice, "max_tokens": 20, "seed": 1}
        body = {"messages": messages, **fields}
        [choice] = chat_client.post(CHAT, json=body).json()["choices"]
        [call] = choice["message"]["tool_calls"]
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == finish_reason
        assert call["type"] == "function" and call["function"]["name"] == "add"
        assert json.loads(call["function"]["arguments"])["a"] in (1, 2, 30)
        lines = chat_client.post(CHAT, json={**body, "stream": True}).text.split("\n\n")[:-2]
        chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
        calls = [c for chunk in chunks for c in chunk["delta"].get("tool_calls", [])]
        assert calls[0]["function"] == {"name": "add", "arguments": ""}
        arguments = "".join(c["function"]["arguments"] for c in calls)
        assert arguments == call["function"]["arguments"]
        assert chunks[-1]["finish_reason"] == finish_reason


def test_other_fields_are_named_in_a_header(client):
    names = ["tempertaure", "max-tokens", "x\r\nX-Evil: 1", "é", "a" * 50]
    for stream in (False, True):
        known = {"prompt": "Hi", "max_tokens": 1, "stream": stream, "user": "me"}
        body = {**known, **dict.fromkeys(names, 1)}
        response = client.post(COMPLETIONS, content=json.dumps(body), headers=JSON)
        assert response.headers["X-Ignored-Fields"] == "user, tempertaure, max-tokens"
    assert "X-Ignored-Fields" not in client.post(COMPLETIONS, json={"max_tokens": 1}).headers
    response = client.post("/tokenize", json={"prompt": "Hi", "promt": "x"})
    assert response.headers["X-Ignored-Fields"] == "promt"


def test_prompt_logprobs_have_the_number_asked_for(client):
    fields = {"prompt": "The fox", "echo": True, "logprobs": 5, "prompt_logprobs": 1}
    [choice] = complete(client, **fields, max_tokens=1)
    assert all(len(entry) <= 2 for entry in choice["prompt_logprobs"][1:])
