"""The `openai` package from PyPI as the client."""

import pytest
from helpers.request_fields import FIELDS


@pytest.fixture(scope="module")
def client(server):
    openai = pytest.importorskip("openai")  # slow to import
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


@pytest.mark.parametrize(("fields", "options"), FIELDS, ids=str)
def test_every_field(client, lm, fields, options):
    options = {"temperature": 1.0, "top_k": 0, "max_new_tokens": 8, **options}
    expected = lm.generate("The king was", seed=11, **options)
    arguments = {"model": "bundled", "prompt": "The king was", "max_tokens": 8, "seed": 11}
    answer = client.completions.create(**arguments, extra_body=fields)
    texts = [c.text for c in (expected, *expected.alternatives)]
    assert [choice.text for choice in answer.choices] == texts
    reason = "stop" if expected.finish_reason == "eos" else expected.finish_reason
    assert answer.choices[0].finish_reason == reason
    chunks = list(client.completions.create(**arguments, extra_body=fields, stream=True))
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == 0]
    assert "".join(part.text for part in parts) == expected.text
    assert parts[-1].finish_reason == reason


def test_errors(client):
    import openai

    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="bundled", prompt="a", temperature=-1)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="none", prompt="a")
