"""Beam search against transformers.generate(num_beams=…): ids of all hypotheses."""

import numpy as np
import pytest
from helpers.peers import torch
from helpers.references import load_reference

from gpt2np import GPT2, ContextLengthError, GenerationOptions, InvalidArgumentError, LanguageModel
from gpt2np.generation.beam_search import beam_search
from gpt2np.generation.request import Request

# (beams, length penalty, early stopping, further options)
SEARCHES = [
    (2, 1.0, False, {}),
    (3, 0.0, True, {}),
    (3, 1.5, "never", {}),
    (4, -1.0, False, {}),
    (4, 2.0, True, {"repetition_penalty": 1.3}),
    (4, 0.6, "never", {"no_repeat_ngram_size": 2}),
    (5, 1.0, True, {"min_new_tokens": 9}),
    (5, 0.3, False, {"bad_words_ids": [[5], [17, 3]]}),
    (6, 1.0, "never", {"suppress_tokens": [9, 30]}),
    (8, 3.0, False, {"repetition_penalty": 0.9, "no_repeat_ngram_size": 3}),
]


@pytest.fixture(autouse=True)
def one_torch_thread():
    """Use one torch thread: its threads busy-wait far longer than these small matmuls take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compare(model, reference, prompt, eos_token_ids, search, new_tokens):
    """Compare ids and scores of all hypotheses with those of transformers; return why they end."""
    beams, length_penalty, early_stopping, further = search
    common = {"num_beams": beams, "length_penalty": length_penalty, "max_new_tokens": new_tokens}
    common["early_stopping"] = early_stopping
    own = {"temperature": 0, **common, **further}
    own["bad_words_ids"] = own.get("bad_words_ids", []) + [
        [i] for i in own.pop("suppress_tokens", [])
    ]
    ours = beam_search(model, Request(prompt, GenerationOptions(**own), eos_token_ids))
    with torch.no_grad():
        theirs = reference.generate(
            torch.tensor([prompt]),
            do_sample=False,
            num_return_sequences=beams,
            eos_token_id=sorted(eos_token_ids),
            pad_token_id=min(eos_token_ids),
            return_dict_in_generate=True,
            output_scores=True,
            **common,
            **further,
        )
    assert len(ours) == beams
    for result, ids, score in zip(ours, theirs.sequences, theirs.sequences_scores, strict=True):
        ids, n = ids[len(prompt) :].tolist(), len(result.ids)
        assert result.ids == ids[:n] and {*ids[n:]} <= {*eos_token_ids}
        assert result.score == pytest.approx(float(score), rel=1e-5, abs=1e-4)
        assert (result.finish_reason == "eos") == (result.ids[-1] in eos_token_ids)
    return {result.finish_reason for result in ours}


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_models(tiny, rounds):
    """Several end-of-text ids let beams end at different lengths.

    With this seed, a search that looks at a worse running beam than the best ends too early.
    """
    rng, seen, model = np.random.default_rng(76), set(), GPT2.from_folder(tiny[0])
    for number in range(rounds * len(SEARCHES)):
        prompt = rng.integers(0, 211, rng.integers(1, 20)).tolist()
        ends = set(rng.choice(211, [1, 6, 20, 60][number % 4], replace=False).tolist())
        search = SEARCHES[number % len(SEARCHES)]
        seen |= compare(model, tiny[1], prompt, ends, search, int(rng.integers(2, 28)))
    assert seen == {"eos", "length"}


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_bundled_model(bundled, data, step):
    """Every fifth search (`-m slow`: all)."""
    lm, reference = LanguageModel.load(bundled), load_reference(bundled)
    stories = (data / "stories" / "valid.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    for number in range(0, len(SEARCHES), step):
        text = stories[40 + number].strip()
        # The last words of a story are likely to be followed by the end of text.
        prompt = lm.tokenizer.encode(text[-150:] if number % 2 else text[:200])
        compare(lm.model, reference, prompt, {4095}, SEARCHES[number], 14)


def test_until_the_context_is_full(tiny):
    model = GPT2.from_folder(tiny[0])
    options = GenerationOptions(temperature=0, num_beams=3, max_new_tokens=100)
    result = beam_search(model, Request([5] * 40, options))
    assert [len(item.ids) for item in result] == [9, 9, 9]
    assert {item.finish_reason for item in result} == {"length"}
    assert len(beam_search(model, Request([5] * 48, options))[0].ids) == 1
    with pytest.raises(ContextLengthError):
        beam_search(model, Request([5] * 49, options))


def test_stop_ids_end_a_beam(tiny):
    model = GPT2.from_folder(tiny[0])
    options = {"temperature": 0, "num_beams": 4, "max_new_tokens": 20}
    free = beam_search(model, Request([1, 2, 3], GenerationOptions(**options)))
    stop = free[0].ids[5]
    result = beam_search(
        model, Request([1, 2, 3], GenerationOptions(**options, stop_token_ids=[stop]))
    )
    assert any(item.finish_reason == "stop" for item in result)
    for item in result:
        assert stop not in item.ids[:-1]
        assert (item.ids[-1] == stop) == (item.finish_reason == "stop")


def test_a_beam_without_a_way_on_leaves_the_others(tiny):
    """Constraints that rule out every id for some beams."""

    class OneWay:
        """Allows 5 and 6 first; nothing after 5, only 7 after 6."""

        def __init__(self, way=(5, 6)):
            self.way = way

        complete = property(lambda self: self.way is None)

        def allowed(self):
            return np.isin(np.arange(211), self.way)

        def advance(self, token_id):
            return OneWay({5: (), 6: (7,), 7: None}[token_id])

    model = GPT2.from_folder(tiny[0])
    options = GenerationOptions(temperature=0, num_beams=3)
    result = beam_search(model, Request([1, 2], options, constraint=OneWay()))
    assert [(item.ids, item.finish_reason) for item in result] == [([6, 7], "stop")]
    with pytest.raises(InvalidArgumentError, match="every token is ruled out"):
        beam_search(model, Request([1, 2], options, constraint=OneWay((5,))))


class TestTexts:
    def test_stops_cut_it(self, lm):
        options = {"num_beams": 4, "max_new_tokens": 25}
        whole = lm.generate("Once upon a time", **options)
        stop = whole.text[20:24]
        result = lm.generate("Once upon a time", **options, stop=stop)
        assert result.text == whole.text[: whole.text.index(stop)]
        assert result.finish_reason == "stop"
        assert result.ids == whole.ids[: len(result.ids)] and len(result.ids) < len(whole.ids)

    def test_log_probabilities(self, lm):
        result = lm.generate("Once upon", num_beams=3, max_new_tokens=9, logprobs=1)
        assert [item.id for item in result.logprobs] == result.ids
        again = lm.generate([*result.prompt_ids, *result.ids], max_new_tokens=1, prompt_logprobs=1)
        for expected, found in zip(again.prompt_logprobs[-9:], result.logprobs, strict=True):
            assert found.id == expected.id and found.rank == expected.rank
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
