"""The walkthrough's checkers reject likely mistakes with a specific hint."""

import json
import math
import re

import numpy as np
import pytest
from checks import CHECKERS, check, hint_for
from copies import without_outputs
from helpers.paths import CHECKOUT

from gpt2np.generation.sampling import next_probabilities
from gpt2np.interp import zero


def generate_without_cache(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(int(model.forward([ids])[-1].argmax()))
    return ids[-count:]


def ban_in_place(logits, ids):
    logits[ids] = -math.inf
    return logits


MISTAKES = {  # one likely mistake per exercise
    "most_surprising_word": lambda lm, text: (
        min(lm.score(text).by_word(), key=lambda word: word.surprisal).text
    ),
    "more_probable": lambda lm, first, second: max(
        first, second, key=lambda text: lm.score(text).logprobs.mean()
    ),
    "surprise_of": lambda lm, beginning, word: -lm.score(word, given=beginning).total / math.log(2),
    "central_difference": lambda f, x, step: (f(x + step) - f(x)) / step,
    "logits_gradient": lambda logits, targets: (
        np.exp(logits - logits.max(-1, keepdims=True))
        / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)
        - np.eye(logits.shape[1])[targets]
    ),
    "clipped": lambda gradients, max_norm: [
        g * min(1, max_norm / np.linalg.norm(g)) for g in gradients
    ],
    "characters_per_token": lambda tokenizer, text: len(text.encode()) / tokenizer.count(text),
    "first_merge": lambda tokenizer, piece: tokenizer.trace_merges(piece)[0].steps[0].tokens[:2],
    "is_concatenation": lambda tokenizer, left, right: True,
    "safe_prompt": lambda tokenizer, text: [
        tokenizer.eos_token_id,
        *tokenizer.encode(text, allowed_special="all"),
    ],
    "count_tokens": lambda trained, count, text: len(text.encode()),
    "min_merges": lambda trained, text, goal: 0,
    "intermediate_tokens": lambda trained, text: set(trained.tokens[257:]),
    "nearest_neighbors": lambda table, number, count: np.argsort(-(table @ table[number]))[:count],
    "embed": lambda model, ids, start: (
        model.weights["wte.weight"][ids] + model.weights["wpe.weight"][: len(ids)]
    ),
    "odd_one_out": lambda model, tokenizer, words: words[-1],
    "attention_score": lambda q, k, i, j: q[i] @ k[j] if j <= i else -math.inf,
    "mean_distance": lambda pattern: pattern.sum(-1).mean(-1),
    "previous_token_head": lambda model, ids: (0, 0),
    "ablate_head": lambda model, ids, layer, head: model.forward([ids]),
    "block_contribution": lambda trace, layer: trace[f"blocks.{layer}.mlp.out"],
    "first_appearance": lambda model, trace: f"blocks.{model.config.n_layer - 1}.resid",
    "most_active_neuron": lambda trace, layer: divmod(
        int(trace[f"blocks.{layer}.mlp.pre"].argmin()), 1024
    ),
    "skip_block": lambda model, ids, layer: model.forward(
        [ids], hook=zero(f"blocks.{layer}.mlp.out")
    ),
    "discarded_mass": lambda logits, p: 1 - p,
    "ban": ban_in_place,
    "find_temperature": lambda logits, probability: 1.0,
    "surprise_in_bits": lambda logits, number, options: (
        -np.log(next_probabilities(logits, options)[number])
    ),
    "cache_bytes": lambda config, tokens: config.n_layer * config.n_embd * tokens * 4,
    "tokens_per_second": lambda config, bandwidth, itemsize: bandwidth / 4,
    "generate_greedily": generate_without_cache,
    "bits_per_character": lambda lm, text: -lm.score(text).total / len(text),
    "most_surprising_token": lambda lm, text: int(np.argmax(lm.score(text).logprobs)),
    "more_likely": lambda lm, prompt, first, second: first,
    "most_important_head": lambda loss, layer, heads: 0,
}


def hint_for_answer(name, answer):
    """Return the hint for an answer, whatever the name of its function."""
    answer.__name__ = name
    return hint_for(answer)


def test_a_misspelled_exercise_gets_its_name():
    hint = hint_for_answer("bits_per_charakter", lambda lm, text: 1.0)
    assert hint == "There is no exercise 'bits_per_charakter'; did you mean 'bits_per_character'?"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CHECKERS)
def test_a_likely_mistake_is_found(name):
    hint = hint_for_answer(name, MISTAKES[name])
    assert hint is not None and "\n" not in hint
    assert not hint.startswith("It raised")


def generate_into_prompt(model, ids, count):
    cache, new = model.new_cache(), list(ids)
    for _ in range(count):
        new = [int(model.forward([new], [cache])[-1].argmax())]
        ids += new
    return ids[-count:]


MORE_MISTAKES = [  # name, answer, words of the hint
    ("characters_per_token", lambda t, text: len(text.encode()) / t.count(text), "not bytes?"),
    (
        "characters_per_token",
        lambda t, text: t.count(text) / len(text),
        "expected 1.667, got 0.600.",
    ),
    (
        "is_concatenation",
        lambda t, left, right: t.count(left + right) == t.count(left) + t.count(right),
        "[32, 518] against [[3562], [88]]",
    ),
    (
        "embed",
        lambda model, ids, start: [model.weights["wte.weight"][number] for number in ids],
        "token i (from 0) has the position 0 + i",
    ),
    ("cache_bytes", lambda config, tokens: 4, "For 1 token, "),
    ("generate_greedily", generate_into_prompt, "has changed"),
    (
        "bits_per_character",
        lambda lm, text: lm.score(text).total / math.log(2) / len(text),
        "negative",
    ),
    ("bits_per_character", lambda lm, text: -lm.score(text).total / len(text), "not nats?"),
    (
        "most_surprising_token",
        lambda lm, text: int(lm.score(text, from_end_of_text=False).logprobs.argmin()),
        "the first entry is NaN",
    ),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "answer", "words"), MORE_MISTAKES)
def test_a_hint_fits_the_mistake(name, answer, words):
    hint = hint_for_answer(name, answer)
    assert words in hint


def test_an_exception_becomes_a_hint():
    def is_concatenation(tokenizer, left, right):
        return 1 / 0

    assert hint_for(is_concatenation) == "It raised ZeroDivisionError: division by zero"


@pytest.mark.parametrize("name", CHECKERS)
def test_a_hint_comes_after_a_try_only(name, capsys):
    namespace = {}
    exec(f"def {name}(*arguments): ...", namespace)
    check(namespace[name])
    assert capsys.readouterr().out == f"{name}: not yet.\n"
    exec(f"def {name}(*arguments): return 'a try'", namespace)
    check(namespace[name])
    assert re.fullmatch(rf"{name}: not yet\. .+\n", capsys.readouterr().out)


def test_the_copies_have_the_cells_but_no_outputs():
    for path in sorted((CHECKOUT / "examples" / "walkthrough").glob("[0-9]_*.ipynb")):
        original = json.loads(path.read_text(encoding="utf-8"))
        copy = json.loads(without_outputs(path.read_text(encoding="utf-8")))
        sources = [[cell["source"] for cell in notebook["cells"]] for notebook in (original, copy)]
        assert sources[0] == sources[1]
        assert not any(cell.get("outputs") for cell in copy["cells"])
