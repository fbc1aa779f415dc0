"""Interventions over HTTP while generating: the library's texts, limits, and other streams."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpt2np.interp import add, direction, scale, zero_head

PROMPT = "The little girl went to the"
POINT = "blocks.3.resid"


@pytest.fixture
def complete(client):
    def complete(*interventions, **fields):
        body = {"prompt": PROMPT, "max_tokens": 10, "temperature": 0.8, "seed": 5, "logprobs": 5}
        body |= {"interventions": list(interventions)} | fields
        return client.post("/v1/completions", json=body)

    return complete


@pytest.fixture(scope="module")
def steering(lm):
    return direction(lm, ["happy", "glad"], ["sad", "angry"], POINT)


def edit(steering, strength):
    return {"point": POINT, "vector": steering.vector.tolist(), "strength": strength}


def generated(lm, hooks, **options):
    options = {"max_new_tokens": 10, "temperature": 0.8, "seed": 5, "logprobs": 5, **options}
    return lm.generate(PROMPT, interventions=hooks, top_k=0, **options)


def assert_same(response, expected, rtol=1e-5):
    choice = response.json()["choices"][0]
    assert choice["text"] == expected.text
    logprobs = [each.logprob for each in expected.logprobs]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(logprobs, rel=rtol)


def test_a_text_equals_that_of_the_library(complete, lm, steering):
    response = complete(edit(steering, -2.5))
    assert_same(response, generated(lm, steering.add(-2.5)))
    assert response.json()["choices"][0]["text"] != complete().json()["choices"][0]["text"]


def test_a_prompt_of_several_chunks(complete, lm, steering):
    """The server computes 256 tokens of a prompt in a step."""
    ids = lm.encode_prompt("The little girl went to the sea and the cat sat there. " * 30)[:400]
    response = complete(edit(steering, 2), prompt=ids, temperature=0, max_tokens=8)
    options = {"max_new_tokens": 8, "temperature": 0, "logprobs": 5}
    assert_same(response, lm.generate(ids, interventions=steering.add(2), **options), rtol=1e-4)


def test_several_interventions(complete, lm, steering):
    half = {"point": "blocks.1.mlp.out", "factor": 0.5}
    hooks = [scale("blocks.1.mlp.out", 0.5), steering.add(2)]
    assert_same(complete(half, edit(steering, 2)), generated(lm, hooks))
    hooks = [scale(POINT, 0.5, positions=[1]), add(POINT, steering.vector, positions=[1])]
    both = edit(steering, 1) | {"factor": 0.5, "positions": [1]}
    assert_same(complete(both), generated(lm, hooks))
    head = {"point": "blocks.3.attn.z", "heads": [2]}
    assert_same(complete(head, temperature=0), generated(lm, zero_head(3, 2), temperature=0))


def test_samples_and_streams(complete, client, lm, steering):
    several = complete(edit(steering, 3), n=3).json()["choices"]
    for i, choice in enumerate(several):
        assert choice["text"] == generated(lm, steering.add(3), seed=5 + i).text
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 5, "temperature": 0.8, "stream": True}
    body["interventions"] = [edit(steering, 3)]
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.read().count(b"data:") > 10


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"interventions": [{"point": "blocks.9.resid"}]}, "unknown hook point"),
        ({"interventions": [{"point": POINT, "vector": [1.0, 2.0]}]}, "does not fit"),
        ({"interventions": [{"point": "blocks.1.attn.z", "heads": [50]}]}, "no head 50"),
        ({"interventions": [{"point": POINT, "heads": [0]}]}, "has no heads"),
        ({"interventions": [{"point": POINT}] * 101}, "interventions"),
        ({"interventions": [{"point": POINT, "positions": [99]}]}, "has no position 99"),
        ({"interventions": [{"point": POINT}], "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"interventions": [{"point": POINT, "strength": 1001, "vector": [1.0]}]}, "strength"),
    ],
)
def test_wrong_requests(complete, fields, words):
    response = complete(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"] and error["param"].startswith("interventions")


def test_an_overflow_ends_its_own_text_only(complete, client, steering):
    """Activations that are not finite are no reason to end another client's stream."""
    body = {"prompt": PROMPT, "max_tokens": 80, "ignore_eos": True, "seed": 1}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.post, "/v1/completions", json=body)
        grown = [{"point": f"blocks.{i}.resid", "factor": 1000} for i in range(6)] * 3
        response = complete(*grown, {"point": "embed", "vector": [1e6], "strength": 1000})
        assert response.status_code == 400
        assert "not numbers with" in response.json()["error"]["message"]
        assert other.result().json()["usage"]["completion_tokens"] == 80
