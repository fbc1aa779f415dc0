"""Generations that are saved and continued; models and streams that are pickled and copied."""

import copy
import json
import pickle

import numpy as np
import pytest

from gpt2np import (
    GPT2,
    BatchError,
    GPT2NPError,
    InvalidArgumentError,
    KVCache,
    LanguageModel,
    trace,
)
from gpt2np.interp import mean_ablate, patch_from, scale, zero_head

SETTINGS = [
    {"temperature": 0.0},
    {"seed": 5, "logprobs": 2, "prompt_logprobs": 1},
    {"seed": 6, "repetition_penalty": 1.3, "logit_bias": {5: -2.0}, "bad_words": ["the"]},
    {"seed": 7, "stop": [" long and", "zebra"], "no_repeat_ngram_size": 3},
    {"seed": 8, "regex": "[a-z ]{20,60}"},
    {"seed": 9, "window": 20, "max_new_tokens": 40},
]


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.load("bundled")


def finished(stream):
    for _ in stream:
        pass
    return stream.completion


@pytest.fixture(scope="module", params=SETTINGS, ids=[str(list(s)[-1]) for s in SETTINGS])
def whole(lm, request):
    """Options, and the text that they generate without interruption."""
    options = {"max_new_tokens": 20, **request.param}
    return options, finished(lm.stream("Once upon a time, the fox", **options, draft="none"))


@pytest.mark.parametrize("n_steps", [0, 6, 500])
@pytest.mark.parametrize("way", ["json", "pickle", "deepcopy"])
def test_a_saved_stream_goes_on_with_the_same_text(lm, whole, n_steps, way):
    options, expected = whole
    stream, read = lm.stream("Once upon a time, the fox", **options), ""
    for _ in range(n_steps):
        if stream.running:
            stream.step()
            read += stream.new_text()
    if way == "json":
        restored = lm.resume(json.loads(json.dumps(stream.state)))
    elif way == "pickle":
        restored = pickle.loads(pickle.dumps(stream))
    else:
        restored = copy.deepcopy(stream)
    rest = "".join(restored)
    completion = restored.completion
    assert read + rest == expected.text
    assert completion.ids == expected.ids
    assert completion.finish_reason == expected.finish_reason
    assert completion.prompt == expected.prompt
    assert [t.id for t in completion.logprobs or []] == [t.id for t in expected.logprobs or []]
    if expected.logprobs:
        found = [t.logprob for t in completion.logprobs]
        np.testing.assert_allclose(found, [t.logprob for t in expected.logprobs], atol=1e-4)
        assert completion.prompt_logprobs == expected.prompt_logprobs


def test_callbacks_can_be_given_again(lm):
    def no_e(ids, logits):
        logits[[5, 6, 7]] = -np.inf
        return logits

    arguments = {"max_new_tokens": 20, "seed": 1, "logits_processor": no_e}
    stream = lm.stream("The", **arguments)
    stream.step()
    restored = lm.resume(stream.state, logits_processor=no_e)
    assert finished(restored).ids == lm.generate("The", **arguments).ids


@pytest.mark.parametrize("state", [{}, {"options": {}}, {"options": {"heat": 1}}])
def test_other_states_are_refused(lm, state):
    with pytest.raises(InvalidArgumentError, match="not the state of a TextStream"):
        lm.resume(state)


def values(content):
    """Yield (container, key) for every value in a JSON value."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], (dict, list)):
            yield from values(content[key])


WRONG = [None, True, -1, 10**30, 2**63, 0.5, float("nan"), "5", "", [], [[]], {}, [None], [True]]


@pytest.mark.parametrize("options", SETTINGS[1:], ids=[str(list(s)[-1]) for s in SETTINGS[1:]])
def test_a_tampered_state_gives_no_other_exception(lm, options):
    """Each value of a state is dropped, or replaced by others; only a GPT2NPError may follow."""
    stream = lm.stream("Once upon a time", **{"max_new_tokens": 8, **options})
    for _ in range(3):
        stream.step()
    state = json.dumps(stream.state)
    n_refused = 0
    for index in range(len(list(values(json.loads(state))))):
        for wrong in [*WRONG, "drop"]:
            content = json.loads(state)
            container, key = list(values(content))[index]
            if wrong == "drop":
                del container[key]
            else:
                container[key] = wrong
            try:
                resumed = lm.resume(content)
                if index % 10 == 0:
                    "".join(resumed)
            except GPT2NPError:
                n_refused += 1
    assert n_refused > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_start": 1}, "context_start of the state is 1; it must be 0"),
        ({"ids": [5] * 9}, "ids of the state is .* shorter than max_new_tokens"),
        ({"ids": [5, 4096]}, "ids of the state: id 4096 is not in the model"),
        ({"ids": [4095, 5, 6]}, "without an end before the last id"),
        ({"finish_reason": "tired"}, "finish_reason of the state is 'tired'; it must be None"),
        ({"n_read": 100}, "n_read of the state is 100; it must be from 0 to"),
        ({"logprobs": [5]}, "logprobs of the state"),
        ({"prompt": 5}, "prompt of the state is 5; it must be a text"),
    ],
)
def test_a_state_that_contradicts_itself(lm, change, message):
    stream = lm.stream("Once upon a time", max_new_tokens=8, seed=1)
    stream.step()
    with pytest.raises(InvalidArgumentError, match=message):
        lm.resume(stream.state | change)


def test_a_shifted_window_and_forbidden_ids(lm):
    stream = lm.stream("The fox " * 300, window=20, max_new_tokens=8, seed=1)
    stream.step()
    state = stream.state
    assert state["context_start"] > 0
    with pytest.raises(InvalidArgumentError, match="context_start of the state"):
        lm.resume(state | {"context_start": state["context_start"] + 1})
    stream = lm.stream("The fox", choices=[" ran", " sat"], seed=1)
    with pytest.raises(InvalidArgumentError, match="the constraint forbids 5"):
        lm.resume(stream.state | {"ids": [5]})


def test_a_model_in_files_is_pickled_as_a_reference(lm):
    content = pickle.dumps(lm)
    assert len(content) < 3_000_000  # tokenizer and n-gram table; the weights have 12 MB
    restored = pickle.loads(content)
    assert restored.name == lm.name
    assert restored.eos_token_ids == lm.eos_token_ids
    options = {"max_new_tokens": 20, "seed": 1}
    assert restored.generate("The fox", **options) == lm.generate("The fox", **options)
    assert copy.deepcopy(lm).generate("The fox", **options) == lm.generate("The fox", **options)


def test_a_changed_model_is_pickled_as_a_whole(lm):
    model = copy.deepcopy(lm.model)
    model.weights["ln_f.bias"] = model.weights["ln_f.bias"] + np.float32(0.5)
    restored = pickle.loads(pickle.dumps(model))
    expected = model.forward([[5, 6, 7]])
    np.testing.assert_array_equal(restored.forward([[5, 6, 7]]), expected)
    assert not np.array_equal(expected, lm.model.forward([[5, 6, 7]]))
    np.testing.assert_array_equal(copy.copy(model).forward([[5, 6, 7]]), expected)
    assert isinstance(restored, GPT2)


def ablated(lm, hook):
    options = {"max_new_tokens": 8, "temperature": 0.0}
    return lm.generate("The queen said that", interventions=hook, **options).ids


def test_interventions_and_errors_travel_between_processes(lm):
    traced = trace(lm, "The king said that")
    hooks = [
        zero_head(3, 2),
        scale("blocks.3.attn.z", 0.5, heads=2),
        mean_ablate("blocks.3.attn.z", traced, heads=2),
        patch_from(traced, "blocks.3.attn.z", heads=2, positions=3),
    ]
    for hook in hooks:
        assert ablated(lm, pickle.loads(pickle.dumps(hook))) == ablated(lm, hook)
    error = pickle.loads(pickle.dumps(BatchError("prompt 2 of 3: no", [1, 2, 3])))
    assert (str(error), error.completions) == ("prompt 2 of 3: no", [1, 2, 3])


def test_a_cache_is_pickled_with_its_tokens(lm):
    cache = lm.model.new_cache()
    lm.model.forward([[5, 6, 7]], [cache])
    restored = pickle.loads(pickle.dumps(cache))
    assert isinstance(restored, KVCache)
    np.testing.assert_array_equal(
        lm.model.forward([[8]], [restored]), lm.model.forward([[8]], [cache])
    )
