"""The endpoints under /api: they give what the library gives."""

import asyncio
import threading

import numpy as np
import pytest
from helpers.explain_pages import decoded, described_logits

from gpt2np import trace
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.sampling import log_softmax
from gpt2np.interp import Target, add, nearest_tokens, saliency, zero_head

PROMPT = "Once upon a time there was a little fox"


def test_rows_of_points(client, lm):
    points = ["embed", "blocks.2.attn.q", f"blocks.{lm.model.config.n_layer - 1}.resid"]
    body = {"prompt": "Once upon a time", "include": [], "points": points, "n_rows": 2}
    body["interventions"] = [{"point": "blocks.1.attn.z", "heads": [2]}]
    answer = client.post("/api/inspect", json=body).json()["points"]
    traced = trace(lm, body["prompt"], points, interventions=zero_head(1, 2))
    for name in points:
        np.testing.assert_array_equal(decoded(answer[name]), traced[name][..., -2:, :])


def test_the_first_wrong_entry_is_named(client):
    for field in ("prompt", "tokens", "include", "points", "interventions"):
        response = client.post("/api/inspect", json={"prompt": [5], field: [[], []]})
        assert response.json()["error"]["param"] == f"{field}.0"


def test_next_tokens(client, lm):
    logprobs = log_softmax(described_logits(lm, lm.encode_prompt(PROMPT)))
    answer = client.post("/api/inspect", json={"prompt": PROMPT, "n": 100}).json()
    ids = [row["id"] for row in answer["next"]]
    assert ids == np.argsort(-logprobs, kind="stable")[:100].tolist()
    np.testing.assert_allclose([row["logprob"] for row in answer["next"]], logprobs[ids], atol=1e-6)
    assert answer["tokens"] == ids[:2]


def edit(**values):
    return {"interventions": [{"point": "blocks.1.attn.z", **values}]}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("inspect", {}, "prompt", "prompt"),
        ("inspect", {"prompt": []}, "prompt", "prompt"),
        ("inspect", {"prompt": [5] * 513}, "prompt", "context"),
        ("inspect", {"prompt": [99999]}, "prompt", "99999"),
        ("inspect", {"prompt": "a", "tokens": [4096]}, "tokens", "vocabulary of 4096"),
        ("inspect", {"prompt": "a", "n": 0}, "n", "n: "),
        ("inspect", {"prompt": "a", "points": ["blocks.9.z"]}, "points", "unknown hook point"),
        ("inspect", {"prompt": "a", "points": ["logits"]}, "points", "embed|blocks"),
        ("inspect", {"prompt": [5] * 512, "points": ["blocks.*"]}, "points", "limit"),
        ("inspect", {"prompt": "a", **edit(positions=[99])}, "interventions", "position 99"),
        ("inspect", {"prompt": "a", **edit(point="blocks.9.attn.z")}, "interventions", "unknown"),
        ("inspect", {"prompt": "a", "top_p": 2}, "top_p", "top_p"),
        ("saliency", {"prompt": [1, 2], "token": 99999}, "token", "99999"),
        ("saliency", {"prompt": [1, 2], "token": 1, **edit(heads=[9])}, "interventions", "head"),
    ],
)
def test_a_wrong_value_names_its_field(client, path, body, param, words):
    response = client.post(f"/api/{path}", json=body)
    error = response.json()["error"]
    assert response.status_code == 400 and words in error["message"]
    assert error["param"].partition(".")[0] == param


def test_a_token_has_its_neighbors_and_its_merges(client, lm):
    [fox] = lm.tokenizer.encode(" fox")
    found = client.get("/api/token", params={"id": fox}).json()
    ids, cosines = nearest_tokens(lm.model.weights["wte.weight"], [fox], 12)
    assert [each["id"] for each in found["nearest"]] == ids[0].tolist()
    assert [each["cosine"] for each in found["nearest"]] == pytest.approx(cosines[0].tolist())
    assert [each["ranks"] for each in found["steps"]] == [
        list(step.ranks) for step in lm.tokenizer.merge_steps(" fox")
    ]
    special = client.get("/api/token", params={"id": lm.model.config.eos_token_ids[0]}).json()
    assert special["steps"] == []


def test_an_id_that_is_no_token_is_named(client):
    error = client.get("/api/token?id=-1").json()["error"]
    assert error["param"] == "id" and "id -1 is not in" in error["message"]


def test_saliency(client, lm):
    ids = lm.encode_prompt("Once upon a time there")
    body = {"prompt": ids[:-1], "token": ids[-1], "steps": 2}
    answer = client.post("/api/saliency", json=body).json()
    expected = saliency(lm, ids[:-1], Target(ids[-1]), steps=2)
    np.testing.assert_allclose(answer["values"], expected.values, rtol=1e-4)
    edits = [{"point": "blocks.1.attn.z", "heads": [2], "factor": 0}]
    answer = client.post("/api/saliency", json=body | {"interventions": edits}).json()
    ablated = saliency(lm, ids[:-1], Target(ids[-1]), steps=2, interventions=zero_head(1, 2))
    np.testing.assert_allclose(answer["values"], ablated.values, rtol=1e-4)
    assert not np.allclose(ablated.values, expected.values, rtol=1e-2)
    for prompt in ([], [1] * 257):
        assert client.post("/api/saliency", json=body | {"prompt": prompt}).status_code == 400


def test_an_inspection_that_waits_is_never_begun_once_its_client_has_left():
    from starlette.exceptions import HTTPException

    from gpt2np.server.engine import INSPECTION, answer, run_on

    class Client:
        async def receive(self):
            return {"type": "http.disconnect"}

    begun, may_end = [], threading.Event()

    async def inspect_twice():
        first = asyncio.ensure_future(run_on(INSPECTION, may_end.wait))
        with pytest.raises(HTTPException, match="disconnected"):
            await answer(Client(), run_on(INSPECTION, begun.append, "second"), 60)
        may_end.set()
        await first
        await run_on(INSPECTION, begun.append, "third")

    asyncio.run(inspect_twice())
    assert begun == ["third"]


def test_passes_end_once_their_client_has_left(lm):
    from starlette.exceptions import HTTPException

    from gpt2np.server.engine import INSPECTION, Engine, Metrics, run_on
    from gpt2np.server.inspect import _run, _saliency
    from gpt2np.server.options import ServerOptions
    from gpt2np.server.protocol import SaliencyRequest

    body = SaliencyRequest(prompt=[5, 6, 7], token=8, steps=64)
    begun, has_left, passes = threading.Event(), threading.Event(), []

    class Client:
        async def receive(self):
            await asyncio.to_thread(begun.wait)
            return {"type": "http.disconnect"}

    def observed(lm, body, hook):
        def observe(name, array):
            if name == "embed":
                passes.append(name)
                if len(passes) == 2:
                    begun.set()
                    has_left.wait()
            return hook(name, array)

        return _saliency(lm, body, observe)

    async def leave():
        engine = Engine(lm, Metrics(), ServerOptions())
        with pytest.raises(HTTPException, match="disconnected"):
            await _run(Client(), engine, observed, body)
        has_left.set()
        await run_on(INSPECTION, lambda: None)

    asyncio.run(leave())
    assert len(passes) == 2  # of 66


def test_a_vector_is_added_at_its_positions(lm):
    from gpt2np.server.inspect import inspect
    from gpt2np.server.protocol import InspectRequest

    vector = np.random.default_rng(0).normal(size=256).round(3).tolist()

    def request(**intervention):
        body = {"prompt": "The little girl", "include": [], "n": 3}
        edit = {"point": "blocks.2.resid", "vector": vector, **intervention}
        return inspect(lm, InspectRequest(**body, interventions=[edit]))

    for positions in ([1], None):
        hook = add("blocks.2.resid", vector, positions=positions)
        logits = trace(lm, "The little girl", "logits", interventions=hook)["logits"][-1]
        found = request(positions=positions)
        assert [item["id"] for item in found["next"]] == np.argsort(-logits)[:3].tolist()
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        request(vector=[1.0, 2.0])
