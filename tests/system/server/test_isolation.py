"""The result of a request does not depend on the other requests.

Without small-matrix kernels, other requests change the last bits of logits. There, a text may
fall otherwise at a near-tie.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import httpx
import pytest
from helpers.near_ties import assert_fell_otherwise, watch
from helpers.request_fields import FIELDS

PROMPTS = ["Once upon a time", "The fox", "A king", "", "1, 2, 3,", "“Où?” 🦊", "In the wood " * 30]
OPTIONS = [*FIELDS, ({"logprobs": 3, "echo": True}, {})]


def random_requests(lm, n):
    """Return for each request its body, its choices when it is alone, and how to repeat one."""
    rng, requests = random.Random(0), []
    for _ in range(n):
        fields, options = rng.choice(OPTIONS)
        prompt, seed, n_new = rng.choice(PROMPTS), rng.randrange(1000), rng.randrange(4, 12)
        if rng.random() < 0.3:
            prompt = lm.encode_prompt(prompt)
        arguments = {"temperature": 1.0, "top_k": 0, "max_new_tokens": n_new, "seed": seed}
        arguments |= options
        expected = lm.generate(prompt, **arguments)
        body = {"prompt": prompt, "max_tokens": n_new, "seed": seed, "return_token_ids": True}
        body |= fields
        body["stream"] = rng.random() < 0.5
        one = {name: arguments[name] for name in arguments.keys() - {"num_return_sequences"}}
        requests.append(
            (body, [expected, *expected.alternatives], partial(lm.stream, prompt, **one))
        )
    return requests


def check(ids, choices, stream_one):
    """Check the ids of a request's choices against its choices when it is alone."""
    for found, choice in zip(ids, choices, strict=True):
        if found != choice.ids:
            alone = stream_one(seed=choice.seed)
            gaps = watch(alone.sequence)
            list(alone)
            assert alone.sequence.ids == choice.ids
            assert_fell_otherwise(found, choice.ids, gaps)


def send(client, body):
    """Return the ids of each choice."""
    if not body["stream"]:
        choices = client.post("/v1/completions", json=body, timeout=300).json()["choices"]
        return [choice["token_ids"] for choice in choices]
    ids = [[] for _ in range(body.get("n", 1))]
    with client.stream("POST", "/v1/completions", json=body, timeout=300) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    for choice in (choice for line in lines for choice in json.loads(line)["choices"]):
        ids[choice["index"]] += choice.get("token_ids", [])
    return ids


def send_and_disconnect(client, body):
    body = {**body, "max_tokens": 300, "n": 1, "ignore_eos": True}
    stream = client.stream("POST", "/v1/completions", json=body, timeout=0.05)
    with suppress(httpx.ReadTimeout), stream as response:
        next(response.iter_bytes())


@pytest.mark.parametrize(
    ("n_requests", "clients"),
    [(12, [12]), pytest.param(200, [1, 4, 16], marks=[pytest.mark.slow])],
)
def test_results_do_not_depend_on_other_requests(client, lm, n_requests, clients):
    requests = random_requests(lm, n_requests)
    for n_clients in clients:
        random.Random(n_clients).shuffle(order := list(range(n_requests)))

        def run(position, order=order):
            if position % 10 == 9:
                send_and_disconnect(client, requests[order[position - 1]][0])
            return send(client, requests[order[position]][0])

        with ThreadPoolExecutor(n_clients) as pool:
            results = list(pool.map(run, range(n_requests)))
        for i, ids in zip(order, results, strict=True):
            check(ids, *requests[i][1:])
