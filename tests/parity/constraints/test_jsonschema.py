"""Texts of random schemas and of a random model, checked by the package `jsonschema`."""

import json
import random

import pytest
from helpers.json_schemas import random_root, random_siblings_root
from helpers.random_models import random_model
from jsonschema import Draft202012Validator

from gpt2np import InvalidArgumentError, LanguageModel, Tokenizer
from gpt2np.tokenizer.vocabulary import AddedToken, Vocabulary, bytes_to_chars

WORDS = ('"', '{"', '":', '",', "12", "漢", "😀", "\\u", "\\ud83d", "é", "null", "}]", "a b")
MANY = [pytest.param(seed, 20, marks=pytest.mark.slow) for seed in range(1000, 1500)]


@pytest.fixture(scope="module")
def byte_model():
    """A random model with a token per byte, and tokens that join what JSON separates."""
    words = [bytes([byte]) for byte in range(256)]
    words += [w for w in (w.encode() for w in WORDS) if w not in words] + [b"x\xc3", b"\xa9,"]
    ids = {bytes_to_chars(word): i for i, word in enumerate(words)}
    shape = {"n_embd": 8, "n_head": 2, "n_inner": 8, "n_layer": 1}
    model = random_model(vocab_size=len(ids) + 1, n_positions=400, **shape)
    end = AddedToken("<|endoftext|>", len(ids))
    return LanguageModel(model, Tokenizer(Vocabulary(ids, {}, (end,))))


@pytest.mark.parametrize(("seed", "n"), [*((seed, 3) for seed in range(10)), *MANY])
def test_all_texts_are_valid(byte_model, seed, n):
    rng = random.Random(seed)
    schema = random_root(rng)
    Draft202012Validator.check_schema(schema)
    options = {"seed": seed, "temperature": 1.5, "top_k": 0, "draft": "none"}
    budget = rng.choice([20, 60, 180])
    try:
        result = byte_model.generate(
            "a", json_schema=schema, max_new_tokens=budget, num_return_sequences=n, **options
        )
    except InvalidArgumentError as error:
        assert any(text in str(error) for text in ("needs", "no text", "beside")), (schema, error)
        return
    for completion in [result, *result.alternatives]:
        assert completion.finish_reason in ("stop", "eos")
        Draft202012Validator(schema).validate(json.loads(completion.text))


@pytest.mark.parametrize("n", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_keywords_that_must_all_hold_texts_are_valid(byte_model, n):
    """Random allOf, anyOf, oneOf, $ref, enum and const with siblings, checked by jsonschema."""
    n_texts = n_schemas = 0
    while n_texts < n:
        n_schemas += 1
        schema = random_siblings_root(random.Random(n_schemas))
        try:
            completion = byte_model.generate(
                "a", json_schema=schema, max_new_tokens=40, seed=n_schemas, temperature=1.5
            )
        except InvalidArgumentError as error:
            expected = ("needs", "no text", "beside", "oneOf is supported", "two values of")
            assert any(text in str(error) for text in expected), (schema, error)
            continue
        n_texts += 1
        errors = [*Draft202012Validator(schema).iter_errors(json.loads(completion.text))]
        assert not errors, (schema, completion.text)
    assert n_texts > 0.2 * n_schemas
