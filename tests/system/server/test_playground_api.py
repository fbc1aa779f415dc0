"""The requests of the playground."""

import base64

import numpy as np
import pytest
from helpers.playground import PROMPT

from gpt2np import trace
from gpt2np.generation.sampling import log_softmax
from gpt2np.interp.weights import nearest_tokens


class TestApi:
    def inspect(self, client, **body):
        response = client.post("/api/inspect", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def test_points(self, client, lm):
        names = ["blocks.1.mlp.act", "blocks.*.attn.pattern"]
        answer = self.inspect(client, prompt=PROMPT, points=names, include=[])
        traced = trace(lm, PROMPT, names)
        assert list(answer["points"]) == list(traced)
        for name, array in traced.items():
            sent = answer["points"][name]
            data = np.frombuffer(base64.b64decode(sent["base64"]), sent["dtype"])
            np.testing.assert_allclose(data.reshape(sent["shape"]), array, atol=1e-6)

    def test_the_last_residual_gives_the_logits(self, client, lm):
        logprobs = log_softmax(lm.model.forward([lm.encode_prompt(PROMPT)])[-1])
        answer = self.inspect(client, prompt=PROMPT, n=100)
        assert len(answer["next"]) == 100
        for row in answer["next"]:
            assert row["logprob"] == pytest.approx(logprobs[row["id"]], abs=1e-6)
        ids = [row["id"] for row in answer["next"]]
        assert ids == np.argsort(-logprobs, kind="stable")[:100].tolist()
        assert answer["tokens"] == ids[:2]

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": [5] * 513}, "context"),
            ({"prompt": [4096]}, "4096"),
            ({"prompt": "a", "tokens": [4096]}, "vocabulary of 4096"),
            ({"prompt": "a", "n": 0}, "n: "),
            ({"prompt": "a", "points": ["nonsense"]}, "unknown hook point"),
            ({"prompt": [5] * 512, "points": ["*"]}, "limit"),
            ({"prompt": "a", "interventions": [{"point": "logits"}]}, "point"),
            ({"prompt": "a", "interventions": [{"point": "blocks.9.attn.z"}]}, "0 … 5"),
            ({"prompt": "a", "interventions": [{"point": "blocks.1.resid", "heads": [1]}]}, "head"),
            (
                {"prompt": "a", "interventions": [{"point": "blocks.1.attn.z", "heads": [9]}]},
                "head",
            ),
            (
                {
                    "prompt": "a",
                    "interventions": [{"point": "blocks.1.mlp.act", "channels": [1024]}],
                },
                "no channel 1024",
            ),
            ({"prompt": "a", "top_p": 2}, "top_p"),
            ({"prompt": "a", "typical_p": 0.9}, "typical_p"),
            ({"prompt": "a", "model": "gpt5"}, "gpt5"),
        ],
    )
    def test_wrong_requests(self, client, body, words):
        response = client.post("/api/inspect", json=body)
        assert response.status_code in (400, 404)
        assert words in response.json()["error"]["message"]

    def test_a_token_has_its_neighbors_and_its_merges(self, client, lm):
        [fox] = lm.tokenizer.encode(" fox")
        found = client.get("/api/token", params={"id": fox}).json()
        embedding = lm.model.weights["wte.weight"]
        ids, cosines = nearest_tokens(embedding, [fox], 12)
        assert [each["id"] for each in found["nearest"]] == ids[0].tolist()
        assert [each["cosine"] for each in found["nearest"]] == pytest.approx(cosines[0].tolist())
        assert [each["ranks"] for each in found["steps"]] == [
            list(step.ranks) for step in lm.tokenizer.merge_steps(" fox")
        ]
        special = client.get("/api/token", params={"id": lm.model.config.eos_token_ids[0]}).json()
        assert special["steps"] == []
        assert client.get("/api/token", params={"id": 4096}).status_code == 400
