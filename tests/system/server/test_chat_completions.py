"""Chat completions, for models with a chat template."""

import json

import pytest

MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


def chat(chat_client, **body):
    return chat_client.post("/v1/chat/completions", json={"messages": MESSAGES, **body})


def test_the_answer_continues_the_rendered_template(chat_client, lm):
    answer = chat(chat_client, max_tokens=12, seed=3, return_token_ids=True).json()
    text = (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = lm.tokenizer.encode(text, allowed_special="all")
    expected = lm.generate(ids, max_new_tokens=12, seed=3, temperature=1.0, top_k=0)
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert answer["prompt_token_ids"] == ids
    assert answer["object"] == "chat.completion"


def test_a_content_can_have_parts(chat_client):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [MESSAGES[0], {"role": "user", "content": parts}]
    answers = [
        chat(chat_client, max_tokens=12, seed=3, messages=m).json()["choices"]
        for m in (messages, MESSAGES)
    ]
    assert answers[0] == answers[1]


def test_streams_join_to_the_answer(chat_client):
    fields = {"max_tokens": 20, "seed": 3, "temperature": 2, "n": 2}
    fields |= {"logprobs": True, "top_logprobs": 2}
    whole = chat(chat_client, **fields).json()["choices"]
    response = chat(chat_client, **fields, stream=True)
    *events, done = [line for line in response.text.splitlines() if line]
    assert done == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    for choice in whole:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(part["delta"].get("content", "") for part in parts)
        assert text == choice["message"]["content"]
        content = [token for part in parts[1:] for token in part["logprobs"]["content"]]
        assert content == choice["logprobs"]["content"]
        for token in content:  # as in vLLM, the token itself comes first
            first, _ = token["top_logprobs"]
            assert first == {name: token[name] for name in first}


def test_a_model_without_template_names_the_other_endpoint(chat_client):
    response = chat(chat_client, model="bundled")
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


def test_structured_outputs_of_the_openai_client(chat_client):
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")

    class Animal(pydantic.BaseModel):
        name: str
        age: int | None
        colors: list[str]

    chats = openai.OpenAI(base_url=f"{chat_client.base_url}/v1", api_key="none").chat.completions
    model = chat_client.get("/v1/models").json()["data"][0]["id"]
    answer = chats.parse(
        model=model, messages=MESSAGES, response_format=Animal, max_tokens=60, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Animal)
