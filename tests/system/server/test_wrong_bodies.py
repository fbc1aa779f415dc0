"""Wrong bodies: an error in OpenAI's form names the field that the client has sent."""

import json

import pytest

from gpt2np.server.protocol import REFUSED

COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
JSON = {"Content-Type": "application/json"}
FUNCTION = {"name": "add", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
WRONG_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}
TWO_SCHEMAS = {"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}}

OF_COMPLETIONS = [  # a body, and words of the error
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt is an empty list"),
    ({"prompt": [[]], "temperature": "hot"}, "temperature"),
    ({"prompt": [[99999999]]}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt.1"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [[1, -1]]}, "prompt.0.1: Input should be greater"),
    ({"prompt": [[5], "\ud800"]}, "prompt.1: lone surrogate"),
    ({"prompt": "a " * 5000}, "prompt"),
    ({"prompt": [5] * 600}, "this model's maximum context length is 512 tokens"),  # litellm's words
    ({"prompt": ["a", "b"], "n": 1000}, "prompt and n ask for 2000 sequences"),
    ({"model": "🦊" * 5000}, "there is no model"),
    ({"temperature": -1}, "temperature"),
    ({"seed": 1 << 70}, "seed"),
    ({"max_tokens": 4.5}, "max_tokens"),
    ({"stop": 5}, "stop: "),
    ({"stop": ["a", 5]}, "stop.1: "),
    ({"stop": ["\ud800"]}, "stop.0: lone surrogate at character 0"),
    ({"stop_token_ids": [99999999]}, "stop_token_ids"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": {"\ud800" * 5000: 1}}, "logit_bias: "),
    ({"logit_bias": {"\x01\r\n" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": dict.fromkeys(map(str, range(1001)), 1)}, "logit_bias: Value should have"),
    ({"logit_bias": dict.fromkeys(map(str, range(100_001)), 1)}, "logit_bias: more than 100,000"),
    *(({name: ["a"] * 1001}, f"{name}: List should have") for name in ("stop", "bad_words")),
    *(({name: ["a" * 30_000] * 2}, name) for name in ("stop", "bad_words")),
    ({"stop_token_ids": list(range(1001))}, "stop_token_ids"),
    ({"logprobs": 21}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"n": 1000, "logprobs": 20, "max_tokens": 500}, "logprobs"),
    ({"min_tokens": 30}, "min_tokens"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format has no JSON Schema"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    ({"response_format": WRONG_SCHEMA}, "response_format, at #: type is 'x'"),
    ({"structured_outputs": {"json": "schema.json"}}, "structured_outputs.json: "),
    ({"structured_outputs": {"json": []}}, "structured_outputs.json: "),
    ({"structured_outputs": {"json": "\ud800"}}, "structured_outputs.json: "),
    ({"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"Regex": "a"}}, "structured_outputs.Regex: Extra"),
    ({"structured_outputs": {"regex": "("}}, "pattern"),
    ({"structured_outputs": {"regex": "a\ud800"}}, "structured_outputs.regex: lone surrogate"),
    ({"structured_outputs": {"choice": ["a" * 99]}, "max_tokens": 3}, "max_tokens and the context"),
    (TWO_SCHEMAS, "contradicts another schema"),
    *(({name: ["x"]}, f"{name} is not supported") for name in REFUSED),
]
OF_STREAMS = [
    ({"best_of": 2}, "best_of is not supported"),
    ({"n": 3, "temperature": 0}, "n=3 and temperature=0.0 contradict"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
]
OF_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "king", "content": ""}]}, "role"),
    ({"messages": [{"role": "user", "content": 5}]}, "content"),
    ({"messages": [{"role": "user", "content": "a<|endoftext|>b"}]}, "<|endoftext|>"),
    ({"messages": [{"role": "user", "content": "a " * 600}]}, "maximum context length"),
    ({"tools": [{}]}, "tools.0"),
    ({"tools": TOOLS}, "tools is not supported unless"),
    ({"tools": TOOLS * 2, "tool_choice": "required"}, "tools is not supported unless"),
    ({"tools": TOOLS, "tool_choice": 123}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "other"}, "tool_choice"),
    ({"tool_choice": TOOLS[0]}, "tool_choice names no function"),
    ({"tools": TOOLS, "tool_choice": "required", "max_completion_tokens": 1}, "max_completion_tok"),
]
OF_TOKENIZE = [
    *(({"prompt": "a", name: ["x"]}, name) for name in ("tools", "chat_template")),
    ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
    ({}, "prompt is missing"),
]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        *((COMPLETIONS, {**b, "stream": i % 2}, w) for i, (b, w) in enumerate(OF_COMPLETIONS)),
        *((COMPLETIONS, *row) for row in OF_STREAMS),
        *((CHAT, {"messages": [{"role": "user", "content": "Hi"}], **b}, w) for b, w in OF_CHATS),
        *((TOKENIZE, *row) for row in OF_TOKENIZE),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_wrong_field_is_named(chat_client, path, body, words):
    content = json.dumps(body)  # ASCII, for surrogates
    response = chat_client.post(path, content=content, headers=JSON)
    assert response.status_code == (404 if "model" in body else 400), response.text
    assert len(response.content) < 1000
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert words in error["message"]
    sent = {*body, "max_tokens", "prompt"}  # the last two have defaults
    assert error["param"].partition(".")[0] in sent
    is_full = "maximum context length" in error["message"]
    assert (error["code"] == "context_length_exceeded") == is_full


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000),
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        *(b'{"prompt": "\\ud800"}', b'{"temperature": NaN}', b'{"temperature": 1e999}'),
        b'{"seed": ' + b"1" * 100_000 + b"}",
        b'{"logit_bias": {"1": Infinity}}',
        b'{"prompt": [1' + b', "a"' * 500_000 + b"]}",
        b'{"stop": [[1]' + b", [1]" * 500_000 + b"]}",
        json.dumps({"logit_bias": dict.fromkeys(map(str, range(-200_000, 1)), 1)}).encode(),
    ],
    ids=lambda content: content[:20],
)
def test_malformed_bodies(chat_client, content):
    response = chat_client.post(COMPLETIONS, content=content, headers=JSON)
    assert response.status_code == 400
    assert response.elapsed.total_seconds() < 5  # not a list of all that is wrong
    assert len(response.content) < 1000
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_byte_order_mark_is_skipped(chat_client):
    body = b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 1}'
    assert chat_client.post(COMPLETIONS, content=body, headers=JSON).status_code == 200


def test_large_bodies_are_refused(chat_client):
    body = b'{"prompt": "' + b"a" * 20_000_000 + b'"}'
    for content in (body, iter([body])):  # the second is sent in chunks
        response = chat_client.post(COMPLETIONS, content=content, headers=JSON)
        assert response.status_code == 413
        assert "4,194,304" in response.json()["error"]["message"]
