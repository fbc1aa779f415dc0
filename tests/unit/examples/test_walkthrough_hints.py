"""The walkthrough's checkers refuse what a reader may get wrong, with a hint that fits."""

import math
import re

import numpy as np
import pytest
from checks import CHECKERS, hint_for
from solutions import ids_to_vectors, learning_a_vocabulary, logits_to_text

from gpt2np.generation import next_probabilities
from gpt2np.interp import lens_table, zero


def greedy_without_cache(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(int(model.forward([ids])[-1].argmax()))
    return ids[-count:]


def ban_in_place(logits, ids):
    logits[ids] = -math.inf
    return logits


MISTAKES = {  # that a reader may make
    "characters_per_token": lambda tokenizer, text: len(text.encode()) / tokenizer.count(text),
    "first_merge": lambda tokenizer, piece: tokenizer.trace_merges(piece)[0].steps[0].tokens[:2],
    "joins": lambda tokenizer, left, right: True,
    "prompt_for": lambda tokenizer, text: [
        tokenizer.eos_token_id,
        *tokenizer.encode(text, allowed_special="all"),
    ],
    "tokens_after": lambda trained, count, text: len(text.encode()),
    "merges_needed": lambda trained, text, goal: 0,
    "stepping_stones": lambda trained, text: set(trained.tokens[257:]),
    "nearest": lambda table, number, count: np.argsort(-(table @ table[number]))[:count],
    "inputs_from": lambda model, ids, start: (
        model.weights["wte.weight"][ids] + model.weights["wpe.weight"][: len(ids)]
    ),
    "odd_one_out": lambda model, tokenizer, words: words[-1],
    "score_of": lambda q, k, i, j: q[i] @ k[j] if j <= i else -math.inf,
    "looks_back": lambda pattern: pattern.sum(-1).mean(-1),
    "previous_token_head": lambda model, ids: (0, 0),
    "without_head": lambda model, ids, layer, head: model.forward([ids]),
    "added_by": lambda trace, layer: trace[f"blocks.{layer}.mlp.out"],
    "appears_at": lambda model, trace: f"blocks.{model.config.n_layer - 1}.resid",
    "strongest_neuron": lambda trace, layer: divmod(
        int(trace[f"blocks.{layer}.mlp.pre"].argmin()), 1024
    ),
    "without_block": lambda model, ids, layer: model.forward(
        [ids], hook=zero(f"blocks.{layer}.mlp.out")
    ),
    "discarded_mass": lambda logits, p: 1 - p,
    "ban": ban_in_place,
    "temperature_for": lambda logits, share: 1.0,
    "bits": lambda logits, number, options: -np.log(next_probabilities(logits, options)[number]),
    "cache_bytes": lambda config, tokens: config.n_layer * config.n_embd * tokens * 4,
    "tokens_per_second": lambda config, bandwidth, itemsize: bandwidth / 4,
    "greedy": greedy_without_cache,
    "bits_per_character": lambda lm, text: -lm.score(text).total / math.log(2) / len(text),
    "most_surprising": lambda lm, text: int(np.nanargmax(lm.score(text).log_probabilities)),
    "likelier": lambda lm, prompt, one, other: one,
    "costliest_head": lambda loss, layer, heads: 0,
}


def hint_for_answer(name, answer):
    """The hint for an answer, which need not have the exercise's name."""
    answer.__name__ = name
    return hint_for(answer)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CHECKERS)
def test_a_likely_mistake_is_found(name):
    hint = hint_for_answer(name, MISTAKES[name])
    assert hint is not None and "\n" not in hint
    assert not hint.startswith("It raised")


def by_tokens(choose):
    """An answer to `likelier` that chooses from the log probabilities of an ending's tokens."""

    def likelier(lm, prompt, one, other):
        def value(ending):
            ids = lm.tokenizer.encode(ending)
            score = lm.score([*lm.tokenizer.encode(prompt), *ids])
            return choose(score.log_probabilities[-len(ids) :])

        return max(one, other, key=value)

    return likelier


def by_vectors(compare, directions=True):
    """An answer to `odd_one_out` that compares the rows of the words."""

    def odd_one_out(model, tokenizer, words):
        rows = model.weights["wte.weight"][[tokenizer.encode(word)[0] for word in words]]
        if directions:
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return words[int(compare(rows).argmin())]

    return odd_one_out


def from_where_it_stays(model, trace):
    table = lens_table(model, trace)
    other = table.ids[:, -1, 0] != table.ids[-1, -1, 0]
    return table.points[int(np.flatnonzero(other).max()) + 1]


def fewest_merges(length, all_of_them):
    """An answer to `merges_needed` with the length of a text in characters or in bytes."""

    def merges_needed(trained, text, goal):
        for count in range(len(trained.merges) + all_of_them):
            if length(text) / learning_a_vocabulary.tokens_after(trained, count, text) >= goal:
                return count
        return None

    return merges_needed


def greedy_into_the_prompt(model, ids, count):
    cache, new = model.new_cache(), list(ids)
    for _ in range(count):
        new = [int(model.forward([new], [cache])[-1].argmax())]
        ids += new
    return ids[-count:]


def first_merge_if_true(tokenizer, piece):
    step = tokenizer.trace_merges(piece)[0].steps[0]
    return step.tokens[step.chosen : step.chosen + 2] if step.chosen else None


def bits_of(lm, text):
    return -lm.score(text, from_end_of_text=True).total / math.log(2)


MORE_MISTAKES = [  # name, answer, words of the hint
    ("characters_per_token", lambda t, text: len(text.encode()) / t.count(text), "not bytes?"),
    ("first_merge", first_merge_if_true, "`chosen` may be 0"),
    (
        "joins",
        lambda t, left, right: t.count(left + right) == t.count(left) + t.count(right),
        "[32, 518] against [[3562], [88]]",
    ),
    ("merges_needed", fewest_merges(len, all_of_them=False), "needs 3 .* not None"),
    ("merges_needed", fewest_merges(lambda text: len(text.encode()), True), "needs 1 .* not 0"),
    ("odd_one_out", by_vectors(lambda rows: rows @ rows[0]), "' river', not ' mother'"),
    ("odd_one_out", by_vectors(lambda rows: (rows @ rows.T).sum(1), False), "' husband', not"),
    (
        "odd_one_out",
        lambda *given: ids_to_vectors.odd_one_out(*given).strip(),
        "' river', not 'river'",
    ),
    (
        "inputs_from",
        lambda model, ids, start: (
            model.weights["wte.weight"][list(ids)] + model.weights["wpe.weight"][start]
        ),
        "the token i, from 0, stands at the place 0 + i",
    ),
    (
        "inputs_from",
        lambda model, ids, start: [model.weights["wte.weight"][number] for number in ids],
        "stands at the place",
    ),
    (
        "looks_back",
        lambda pattern: np.mean(np.arange(3) - pattern.argmax(-1), axis=-1),
        "[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]] looks 0.42",
    ),
    ("appears_at", from_where_it_stays, "for the first time at blocks.1.resid"),
    ("temperature_for", lambda *given: 1.05 * logits_to_text.temperature_for(*given), "by more"),
    ("cache_bytes", lambda config, tokens: 4, "For 1 token, "),
    ("greedy", greedy_into_the_prompt, "has changed"),
    ("bits_per_character", lambda lm, text: bits_of(lm, text) / len(text.encode()), "not bytes?"),
    ("bits_per_character", lambda lm, text: -bits_of(lm, text) / len(text), "negative"),
    (
        "bits_per_character",
        lambda lm, text: bits_of(lm, text) * math.log(2) / len(text),
        "not nats?",
    ),
    (
        "most_surprising",
        lambda lm, text: int(lm.score(text).log_probabilities.argmin()),
        "the first entry is NaN",
    ),
    ("likelier", by_tokens(np.mean), "by the sum of all tokens"),
    ("likelier", by_tokens(lambda each: each[0]), "by the sum of all tokens"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "answer", "words"), MORE_MISTAKES)
def test_a_hint_fits_the_mistake(name, answer, words):
    hint = hint_for_answer(name, answer)
    assert re.search(words if ".*" in words else re.escape(words), hint), hint


def test_a_hint_asks_nothing_that_is_not_the_mistake():
    inverse = hint_for_answer("characters_per_token", lambda t, text: t.count(text) / len(text))
    assert inverse.endswith("it is 1.667, not 0.600.")
    rough = hint_for_answer("bits_per_character", lambda lm, text: 7.0)
    assert rough.endswith("not 7.000.")


def test_a_prompt_may_go_through_the_model_in_parts():
    def greedy(model, ids, count):
        cache = model.new_cache()
        for number in ids[:-1]:
            model.forward([[number]], [cache])
        found, new = [], ids[-1]
        for _ in range(count):
            new = int(model.forward([[new]], [cache])[-1].argmax())
            found.append(new)
        return found

    assert hint_for(greedy) is None


def test_an_exception_becomes_a_hint():
    def joins(tokenizer, left, right):
        return 1 / 0

    assert hint_for(joins) == "It raised ZeroDivisionError: division by zero"
