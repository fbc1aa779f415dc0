"""LanguageModel: text in, text out."""

import dataclasses
import warnings

import numpy as np
import pytest

from gpt2np import (
    GPT2,
    CheckpointError,
    ContextLengthError,
    GenerationInterrupted,
    GenerationOptions,
    InvalidArgumentError,
    LanguageModel,
)
from gpt2np.generation.complete import complete

PROMPTS = ["Once upon a time", "The", "", '"Oh dear!" said the little old woman, and ' * 5, "中"]


def comparable(completion):
    return dataclasses.replace(completion, seconds=0)


class TestGenerate:
    def test_result(self, lm):
        result = lm.generate("Once upon a time", max_new_tokens=20, seed=5)
        assert result.prompt == "Once upon a time"
        assert result.prompt_ids == lm.tokenizer.encode("Once upon a time")
        assert len(result.ids) == 20 and result.finish_reason == "length"
        assert result.text == lm.tokenizer.decode(result.ids)
        assert (result.seed, result.model) == (5, lm.name)
        assert result.tokens_per_second == 20 / result.seconds > 0

    def test_empty_prompt_starts_from_end_of_text(self, lm):
        result = lm.generate("", max_new_tokens=5, seed=0)
        assert result.prompt_ids == [lm.tokenizer.eos_token_id] and len(result.ids) == 5

    def test_seeds(self, lm):
        texts = [lm.generate("The", max_new_tokens=12, seed=s).text for s in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]
        chosen = lm.generate("The", max_new_tokens=12)
        assert lm.generate("The", max_new_tokens=12, seed=chosen.seed).text == chosen.text
        assert chosen.seed != lm.generate("The", max_new_tokens=1).seed

    def test_the_contexts_end(self, lm):
        context = lm.model.config.n_positions
        ids = [5] * (context - 3)
        result = lm.generate(ids, temperature=0, max_new_tokens=100)
        assert result.finish_reason in ("length", "eos") and len(result.ids) <= 4
        full = lm.generate([5] * context, max_new_tokens=100, seed=0)
        assert len(full.ids) == 1
        with pytest.raises(ContextLengthError, match=f"{context + 1} tokens, .* is {context}"):
            lm.generate([5] * (context + 1))


@pytest.mark.filterwarnings("error")
def test_numbers_may_be_numpys(lm):
    options = {"temperature": np.float32(0.5), "top_k": np.int64(9), "seed": np.int32(3)}
    expected = lm.generate("x", max_new_tokens=3, temperature=0.5, top_k=9, seed=3)
    assert lm.generate("x", max_new_tokens=3, **options).ids == expected.ids


SEEDED = {"seed": 3, "max_new_tokens": 12}


class TestOptionNames:
    def test_a_generation_options_object(self, lm):
        options = GenerationOptions(**SEEDED, temperature=0.5)
        expected = lm.generate("Once", **SEEDED, temperature=0.5).ids
        assert lm.generate("Once", options).ids == expected
        assert lm.generate(prompt="Once", options=options).ids == expected
        assert lm.generate_batch(["Once"], options=options)[0].ids == expected
        stream = lm.stream("Once", options)
        assert "".join(stream) and stream.completion.ids == expected
        changed = lm.generate("Once", options, max_new_tokens=5)
        assert changed.ids == expected[:5]
        with pytest.raises(InvalidArgumentError, match="must be a GenerationOptions"):
            lm.generate("Once", {"max_new_tokens": 5})
        beams = GenerationOptions(num_beams=2, temperature=0)
        with pytest.raises(InvalidArgumentError, match="beam search runs alone"):
            lm.stream("Once", beams)


class TestStream:
    @pytest.mark.parametrize("prompt", PROMPTS)
    def test_pieces_join_to_the_text(self, lm, prompt):
        stream = lm.stream(prompt, max_new_tokens=50, seed=4, stop=(" and the", "zzz"))
        pieces = list(stream)
        assert "".join(pieces) == stream.completion.text
        once = lm.generate(prompt, max_new_tokens=50, seed=4, stop=(" and the", "zzz"))
        assert comparable(stream.completion) == comparable(once)

    def test_several_texts_are_no_stream_and_an_error_ends_one(self, lm):
        with pytest.raises(InvalidArgumentError, match="2 continuations cannot be one stream"):
            lm.stream("x", num_return_sequences=2)
        with pytest.raises(InvalidArgumentError, match=r"^after 0 tokens every token is ruled out"):
            list(lm.stream("a", bad_words_ids=[[i] for i in range(4096)]))


class TestBatch:
    def test_seeds_are_counted_over_prompts_and_samples(self, lm):
        batch = lm.generate_batch(["The", "A"], seed=5, num_return_sequences=3, max_new_tokens=8)
        found = [one for first in batch for one in [first, *first.alternatives]]
        assert [one.seed for one in found] == [5, 6, 7, 8, 9, 10]
        for one in found:
            alone = lm.generate(one.prompt, seed=one.seed, max_new_tokens=8)
            assert comparable(alone) == dataclasses.replace(one, seconds=0, alternatives=())

    def test_a_prompt_that_fails_is_named(self, lm):
        banned = {"bad_words_ids": [[i] for i in range(4096)], "max_new_tokens": 6}
        requests = [lm.request("a", max_new_tokens=6, seed=3), lm.request("b", **banned)]
        with pytest.raises(InvalidArgumentError, match=r"^prompt 2 of 2: .* every token is ruled"):
            complete(lm.model, requests)


class TestStops:
    def test_ids(self, lm):
        whole = lm.generate("Once upon a time", max_new_tokens=40, seed=3)
        place = next(i for i in range(5, 40) if whole.ids[i] not in whole.ids[:i])
        found = lm.generate(
            "Once upon a time", max_new_tokens=40, seed=3, stop_token_ids=[whole.ids[place]]
        )
        assert found.ids == whole.ids[: place + 1] and found.finish_reason == "stop"
        assert found.text == lm.tokenizer.decode(whole.ids[:place])

    def test_no_end_of_text(self, lm):
        prompt, options = "Once upon a time", {"max_new_tokens": 40, "temperature": 0}
        options["logit_bias"] = {4095: 14}
        ended = lm.generate(prompt, **options)
        assert ended.finish_reason == "eos" and len(ended.ids) < 30
        assert ended.text == lm.tokenizer.decode(ended.ids[:-1])
        never = lm.generate(prompt, **options, ignore_eos=True)
        assert never.finish_reason == "length" and len(never.ids) == 40
        later = lm.generate(prompt, **options, min_new_tokens=30)
        assert len(later.ids) >= 30 and 4095 not in later.ids[:30]
        assert never.ids[: len(ended.ids) - 1] == ended.ids[:-1]

    def test_bad_words_as_texts(self, lm):
        options = {"temperature": 0, "max_new_tokens": 40}
        plain = lm.generate("Once upon a time there was a", **options).text
        word = next(w for w in plain.split() if w.isalpha() and len(w) > 2)
        found = lm.generate("Once upon a time there was a", **options, bad_words=[word]).text
        assert f" {word} " in f" {plain} " and f" {word} " not in f" {found} "


def test_an_end_of_text_that_has_no_row_is_never_banned(lm):
    other = LanguageModel(lm.model, lm.tokenizer, eos_token_ids=frozenset({4095, 9999}))
    options = {"seed": 1, "max_new_tokens": 5}
    assert (
        other.generate("The", ignore_eos=True, **options).ids
        == lm.generate("The", ignore_eos=True, **options).ids
    )


@pytest.mark.parametrize(
    "options", [{}, {"num_return_sequences": 2}, {"num_beams": 2}, {"prompt_logprobs": 1}], ids=str
)
def test_logits_that_are_not_numbers_raise_and_name_the_weight(bundled, options):
    lm = LanguageModel.load(bundled)
    bias = np.full_like(lm.model.weights["ln_f.bias"], np.nan)
    lm.model = GPT2(lm.model.config, {**lm.model.weights, "ln_f.bias": bias})
    expected = r"not numbers: NaN or infinite numbers are stored in ln_f\.bias"
    with pytest.raises(CheckpointError, match=expected):
        lm.generate("one two three", **options)


class TestInterruption:
    """Ctrl-C, or the stop button of a notebook; the texts so far are kept."""

    @pytest.fixture
    def interrupt(self, lm, monkeypatch):
        """Return a function: pass number n raises KeyboardInterrupt."""
        forward, n_passes = type(lm.model).forward, []

        def interrupt_in_pass(number):
            def interrupted(model, *arguments, **options):
                n_passes.append(1)
                if len(n_passes) == number:
                    raise KeyboardInterrupt
                return forward(model, *arguments, **options)

            n_passes.clear()
            monkeypatch.setattr(type(lm.model), "forward", interrupted)

        return interrupt_in_pass

    def test_one_text(self, lm, interrupt):
        whole = lm.generate("The fox", max_new_tokens=20, seed=1, draft="none")
        interrupt(9)
        with pytest.raises(KeyboardInterrupt) as caught:
            lm.generate("The fox", max_new_tokens=20, seed=1, draft="none")
        assert isinstance(caught.value, GenerationInterrupted)
        (found,) = caught.value.completions
        assert found.ids == whole.ids[:8] and whole.text.startswith(found.text) and found.text
        assert (found.finish_reason, found.seed, found.prompt) == ("cancelled", 1, "The fox")
        assert lm.generate("The fox", max_new_tokens=20, seed=1, draft="none") == whole

    def test_a_batch(self, lm, interrupt):
        options = {"seed": 1, "num_return_sequences": 2, "draft": "none"}
        lengths = [3 if i == 1 else 8 for i in range(40)]
        requests = [lm.request("The fox", max_new_tokens=n, **options) for n in lengths]
        whole = complete(lm.model, requests)
        interrupt(6)
        with pytest.raises(GenerationInterrupted, match="the texts so far") as caught:
            complete(lm.model, requests)
        found = caught.value.completions
        assert len(found) == 40 and found[1] == whole[1]
        assert found[1].finish_reason == "length" and len(found[1].alternatives) == 1
        assert found[0].ids == whole[0].ids[: len(found[0].ids)] and found[0].ids
        assert found[0].finish_reason == found[39].finish_reason == "cancelled"
        assert found[39].ids == [] and found[39].text == ""

    def test_with_beams(self, lm, interrupt):
        own = [{"num_beams": 2}, {"num_beams": 2}, {}]
        given = {"max_new_tokens": 4, "temperature": 0.0, "seed": 1}
        prompts = ["The fox", "The king", "It was"]
        requests = [
            lm.request(prompt, **given, **more) for prompt, more in zip(prompts, own, strict=True)
        ]
        whole = complete(lm.model, requests)
        interrupt(6)
        with pytest.raises(GenerationInterrupted) as caught:
            complete(lm.model, requests)
        first, second, third = caught.value.completions
        assert first == whole[0]
        for found, expected in ((second, whole[1]), (third, whole[2])):
            assert (found.text, found.ids, found.finish_reason) == ("", [], "cancelled")
            assert (found.prompt_ids, found.seed) == (expected.prompt_ids, expected.seed)


@pytest.mark.parametrize("call", ["generate", "score"])
def test_special_token_in_a_text_warns_and_allowed_special_encodes_it(lm, call):
    given = {"max_new_tokens": 1} if call == "generate" else {}
    run = getattr(lm, call)
    with pytest.warns(UserWarning, match=r"token <\|endoftext\|>, which is encoded") as warned:
        plain = run("a<|endoftext|>", **given)
    assert warned[0].filename == __file__  # the user's line, not one of the package
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        special = run("a<|endoftext|>", allowed_special="all", **given)
        assert run("a b", **given)
    ids = [list(r.prompt_ids if call == "generate" else r.ids) for r in (plain, special)]
    assert len(ids[0]) == 9 and ids[1] == [64, lm.tokenizer.eos_token_id]
