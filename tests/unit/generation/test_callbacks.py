"""The caller's code in the decode loop: processors, criteria, callbacks, interventions."""

import math

import numpy as np
import pytest

from gpt2np import GenerationOptions, InvalidArgumentError
from gpt2np.generation.request import GeneratedToken
from gpt2np.generation.scheduler import Scheduler
from gpt2np.interp import chain, patch_from, trace, zero, zero_head

PROMPTS = ["Once upon a time", "The fox said: the fox", "1, 2, 3, 1, 2, 3, 1, 2", ""]


def ban(*token_ids):
    def processor(ids, logits):
        logits[list(token_ids)] = -np.inf
        return logits

    return processor


def shift_by_length(ids, logits):
    """A processor that depends on all ids, and changes every step."""
    return logits + np.sin(np.arange(len(logits)) * len(ids) + sum(ids))


@pytest.mark.parametrize("beams", [1, 3])
def test_logits_processor_that_bans_a_token_as_bad_words_do(lm, beams):
    options = {"max_new_tokens": 12, "num_beams": beams, "temperature": 0.0}
    banned = lm.generate("Once upon a time", **options).ids[3]
    result = lm.generate("Once upon a time", **options, logits_processor=ban(banned))
    assert banned not in result.ids
    assert result.ids == lm.generate("Once upon a time", **options, bad_words_ids=[[banned]]).ids


def test_a_processor_receives_the_ids_of_prompt_and_continuation(lm):
    seen = []
    result = lm.generate(
        "The fox",
        max_new_tokens=5,
        seed=1,
        draft="none",
        logits_processor=lambda ids, logits: seen.append(ids) or logits,
    )
    all_ids = [*result.prompt_ids, *result.ids]
    assert seen == [all_ids[: len(result.prompt_ids) + i] for i in range(len(result.ids))]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"seed": 9, "top_p": 0.9}])
def test_batches_and_drafts_change_nothing_under_a_processor(lm, options):
    arguments = {"max_new_tokens": 12, "logits_processor": [shift_by_length, ban(13)], **options}
    batch = lm.generate_batch(PROMPTS, **arguments)
    for i, (prompt, completion) in enumerate(zip(PROMPTS, batch, strict=True)):
        single = {**arguments, "seed": completion.seed}
        assert lm.generate(prompt, **single).ids == completion.ids, i
        assert lm.generate(prompt, draft="none", **single).ids == completion.ids, i
        stream = lm.stream(prompt, **single)
        assert "".join(stream) == completion.text


def test_forbidden_tokens_stay_forbidden(lm):
    result = lm.generate(
        "It is",
        choices=[" yes", " no"],
        seed=0,
        logits_processor=lambda ids, logits: np.zeros_like(logits),
    )
    assert result.text in (" yes", " no")


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda ids, logits: None, r"got: object of shape \(\)"),
        (lambda ids, logits: logits[:5], r"shape \(4096,\); got: float32 of shape \(5,\)"),
        (lambda ids, logits: logits * np.nan, "got: nan as the highest"),
        (lambda ids, logits: logits.astype(float) + 1e300, "got: inf as the highest"),
        (lambda ids, logits: [[1], [1, 2]], "got: .*inhomogeneous"),
        (lambda ids, logits: np.full(len(logits), -np.inf), "got: -inf as the highest"),
    ],
)
def test_what_a_processor_returns_is_checked(lm, processor, message):
    with pytest.raises(InvalidArgumentError, match=message):
        lm.generate("It is", max_new_tokens=3, logits_processor=processor)


def test_an_exception_of_a_callback_ends_only_its_sequence(lm):
    class CallerError(Exception):
        pass

    def fail_on_foxes(ids, logits):
        if ids[: len(fox)] == fox and len(ids) > len(fox) + 2:
            raise CallerError("no foxes")
        return logits

    fox = lm.encode_prompt("The fox")
    with pytest.raises(CallerError):
        lm.generate("The fox", logits_processor=fail_on_foxes)
    prompts = ["Once", "The fox", "A king"]
    with pytest.raises(CallerError, match="no foxes"):
        lm.generate_batch(prompts, max_new_tokens=9, seed=1, logits_processor=fail_on_foxes)


def test_a_stopping_criterion_ends_the_text_after_its_token(lm):
    plain = lm.generate("Once upon a time", max_new_tokens=40, seed=3)
    n_prompt = len(plain.prompt_ids)
    result = lm.generate(
        "Once upon a time",
        max_new_tokens=40,
        seed=3,
        stopping_criteria=[lambda ids, logits: len(ids) == n_prompt + 7],
    )
    assert result.ids == plain.ids[:7]
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("n", [1, 3])
def test_an_exception_of_on_token_is_raised_also_at_the_last_token(lm, n):
    def fail(token):
        seen.append(token.id)
        if len(seen) == n:
            raise ZeroDivisionError

    seen = []
    with pytest.raises(ZeroDivisionError):
        lm.generate("The fox", max_new_tokens=3, seed=1, on_token=fail)
    assert len(seen) == n


def test_on_token_receives_every_token_once(lm):
    tokens = []
    result = lm.generate("The fox", max_new_tokens=20, seed=2, logprobs=3, on_token=tokens.append)
    assert [token.id for token in tokens] == result.ids
    assert [token.text for token in tokens] == result.tokens
    assert [token.logprob for token in tokens] == [token.logprob for token in result.logprobs]
    assert all(isinstance(token, GeneratedToken) and len(token.top) == 3 for token in tokens)
    assert {token.index for token in tokens} == {0}


def test_on_token_tells_continuations_apart(lm):
    texts = {}

    def collect(token):
        texts.setdefault(token.index, []).append(token.id)
        assert token.logprob <= 0

    options = {"max_new_tokens": 6, "seed": 4, "num_return_sequences": 2}
    results = lm.generate_batch(["The fox", "A king"], **options, on_token=collect)
    ordered = [c for result in results for c in (result, *result.alternatives)]
    assert [texts[i] for i in range(4)] == [completion.ids for completion in ordered]
    assert ordered[0].logprobs is None  # as without the callback


def reference_ids(lm, prompt, count, hook):
    """Greedy ids by whole forward passes without caches: `hook`'s edits of every token."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(lm.model.forward([ids], hook=hook)[-1].argmax()))
    return ids[len(prompt) :]


def test_an_intervention_acts_on_prompt_and_generated_tokens(lm):
    hook = chain(zero_head(0, 1), zero("blocks.1.mlp.out"))
    options = {"max_new_tokens": 15, "temperature": 0.0, "interventions": hook, "ignore_eos": True}
    result = lm.generate("Once upon a time", **options)
    prompt = result.prompt_ids
    assert result.ids == reference_ids(lm, prompt, 15, hook)
    plain = lm.generate("Once upon a time", **{**options, "interventions": None})
    assert result.ids != plain.ids


def test_positions_of_an_intervention_are_tokens_of_the_prompt(lm):
    source = trace(lm, "The dog ran")
    hook = patch_from(source, "blocks.0.resid", positions=1)
    result = lm.generate(
        "The fox ran", max_new_tokens=12, temperature=0.0, interventions=hook, ignore_eos=True
    )
    # A pass over the whole text patches the same position, as keys and values stay patched.
    assert result.ids == reference_ids(lm, result.prompt_ids, 12, hook)


def test_interventions_act_on_scores(lm):
    """Each log probability is that of a pass over the text alone."""
    hook = chain(zero_head(0, 1), zero("blocks.*.mlp.out", positions=1))
    texts = ["Once upon a time there was a king.", "The fox", "a " * 300]
    scores = lm.score(texts, given="Oh!", interventions=hook)
    for text, score in zip(texts, scores, strict=True):
        ids = [*lm.tokenizer.encode("Oh!"), *lm.tokenizer.encode(text)]
        logits = lm.model.forward([ids], hook=hook)[-len(score.ids) - 1 : -1].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = logprobs[np.arange(len(score.ids)), score.ids]
        np.testing.assert_allclose(score.logprobs, expected, atol=1e-4)
    assert lm.score(texts[0], given="Oh!").total != scores[0].total
    listed = lm.score(texts[0], given="Oh!", interventions=[hook])
    np.testing.assert_array_equal(listed.logprobs, scores[0].logprobs)
    long = lm.score("The fox ran. " * 140, interventions=hook)
    assert np.isfinite(long.logprobs[1:]).all()


@pytest.mark.parametrize("point", ["blocks.1.mlp.out", "ln_f", "logits"])
def test_positions_count_all_tokens_also_where_only_the_last_has_a_row(lm, point):
    options = {"max_new_tokens": 3, "temperature": 0.0}
    ids = lm.generate("The fox", **options).ids
    assert lm.generate("The fox", interventions=zero(point, positions=0), **options).ids == ids
    last = zero(point, positions=-1)
    expected = trace(lm, "The fox", "logits", interventions=last)["logits"][-1].argmax()
    assert lm.generate("The fox", interventions=last, **options).ids[0] == expected


def test_processors_come_before_temperature_and_filters(lm):
    """A processor that makes one token certain leaves nothing to sample."""

    def certain(ids, logits):
        return np.where(np.arange(len(logits)) == 42, 50.0, logits)

    options = GenerationOptions(temperature=1.5, top_k=0, seed=1, max_new_tokens=4)
    result = lm.generate("The", options, logits_processor=certain, logprobs=0)
    assert result.ids == [42] * 4
    assert all(token.logprob < math.log(0.5) for token in result.logprobs)  # of the model's logits


def not_numbers(name, array):
    return array + 0j if name == "embed" else array


def of_uneven_lists(name, array):
    return [[1], [1, 2]] if name == "embed" else array


@pytest.mark.parametrize(
    "call",
    [
        lambda lm: lm.model.forward([[5, 6]], hook=not_numbers),
        lambda lm: lm.model.forward([[5, 6]], hook=chain(of_uneven_lists, lambda _, x: x)),
        lambda lm: trace(lm, [5, 6], "embed", interventions=of_uneven_lists),
        lambda lm: lm.generate("The", max_new_tokens=1, interventions=not_numbers),
    ],
)
def test_what_a_hook_returns_is_checked(lm, call):
    with pytest.raises(InvalidArgumentError, match=r"at embed; got: (complex64|.*inhomogeneous)"):
        call(lm)


def test_an_intervention_that_fails_ends_only_its_text(lm):
    def fail(name, array):
        raise RuntimeError("no foxes")

    def overflow(name, array):
        return array * np.inf if name == "ln_f" else array

    options = {"max_new_tokens": 3, "temperature": 0}
    plain = lm.stream(PROMPTS[0], **options).sequence
    failed = [lm.stream(PROMPTS[1], interventions=hook, **options) for hook in (fail, overflow)]
    scheduler = Scheduler(lm.model)
    for sequence in (*(stream.sequence for stream in failed), plain):
        scheduler.add(sequence)
    while scheduler.busy:
        scheduler.step()
    assert plain.ids == lm.generate(PROMPTS[0], **options).ids
    errors = [stream.sequence.error for stream in failed]
    assert isinstance(errors[0], RuntimeError)
    assert isinstance(errors[1], InvalidArgumentError) and "not numbers" in str(errors[1])
