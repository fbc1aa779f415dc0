"""Prompts computed in chunks, and shared starts of prompts computed once: same results."""

import time

import numpy as np
import pytest
from helpers.equal_results import assert_equal_results

from gpt2np.generation.scheduler import Scheduler
from gpt2np.interp import zero_head

STORY = "Once upon a time there was a king who had three sons and a golden fox in his garden. "


def run(lm, streams, monkeypatch, **options):
    """Run streams in one batch; return the numbers of tokens of each sequence in each pass."""
    sizes, forward = [], lm.model.forward

    def record(sequences, *args, **kwargs):
        sizes.append([len(ids) for ids in sequences])
        return forward(sequences, *args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", record)
    scheduler = Scheduler(lm.model, **options)
    for stream in streams:
        scheduler.add(stream.sequence)
    while scheduler.busy:
        scheduler.step()
    monkeypatch.undo()
    return sizes


@pytest.mark.parametrize("options", [{}, {"draft": "none"}, {"prompt_logprobs": 1}], ids=str)
def test_a_chunk_limits_the_tokens_of_prompts_in_a_step(lm, monkeypatch, options):
    prompts = ["The fox", STORY * 2, "A wolf and " + STORY]
    arguments = {"max_new_tokens": 10, "seed": 1, "logprobs": 1, **options}
    expected = [lm.generate(prompt, **arguments) for prompt in prompts]
    streams = [lm.stream(prompt, **arguments) for prompt in prompts]
    sizes = run(lm, streams, monkeypatch, prefill_chunk=7)
    assert_equal_results([stream.completion for stream in streams], expected)
    if options == {"draft": "none"}:
        assert max(map(sum, sizes)) <= 7 + len(prompts)
        assert 7 in map(sum, sizes)


def test_running_sequences_go_on_between_chunks(lm, monkeypatch):
    short = lm.stream("The fox", max_new_tokens=12, seed=1, draft="none")
    long = lm.stream(STORY * 4, max_new_tokens=2, seed=1, draft="none")
    sizes = run(lm, [short, long], monkeypatch, prefill_chunk=8)
    with_both = [ns for ns in sizes if 1 in ns and 4 in ns]  # half a chunk
    assert len(with_both) > 5
    assert all(sum(ns) <= 8 for ns in sizes)


def test_a_shared_start_of_prompts_is_computed_once(lm, monkeypatch):
    prompts = [STORY + end for end in ("The king", "One day", "The fox", "")]
    expected = [lm.generate(prompt, max_new_tokens=12, seed=1) for prompt in prompts]
    streams = [lm.stream(prompt, max_new_tokens=12, seed=1, draft="none") for prompt in prompts]
    n_story = len(lm.encode_prompt(STORY))
    for chunk in (None, 9):
        streams = [lm.stream(prompt, max_new_tokens=12, seed=1, draft="none") for prompt in prompts]
        sizes = run(lm, streams, monkeypatch, prefill_chunk=chunk)
        assert_equal_results([stream.completion for stream in streams], expected)
        assert sum(map(sum, sizes)) < 2 * n_story + 4 * 12


def test_slow_masks_take_turns_and_change_no_text(lm):
    """In a step beside others, they take a tenth of a second, and one mask more."""
    calls = []

    class SlowMask:
        complete = False

        def allowed(self):
            calls.append(self)
            time.sleep(0.04)
            return np.ones(lm.model.config.vocab_size, bool)

        def advance(self, token_id):
            return self

    options = {"max_new_tokens": 4, "ignore_eos": True}
    texts = [lm.stream("The fox", seed=i, constraint=SlowMask(), **options) for i in range(5)]
    slow = [text.sequence for text in texts]
    quick = lm.stream("A king", seed=1, max_new_tokens=40).sequence
    scheduler = Scheduler(lm.model, prefill_chunk=256)
    for sequence in (*slow, quick):
        scheduler.add(sequence)
    while scheduler.busy:
        n_calls, n_ids = len(calls), len(quick.ids)
        quick.step_seconds = 0  # on a busy machine, any text may seem slow
        scheduler.step()
        assert len(calls) - n_calls <= 3
        assert len(quick.ids) > n_ids or quick.finish_reason
    for i, sequence in enumerate(slow):
        assert sequence.ids == lm.generate("The fox", seed=i, **options).ids


def test_an_error_in_a_mask_ends_its_own_text_only(lm):
    class Wrong:
        complete = False

        def allowed(self):
            raise ValueError("too large")

    wrong = lm.stream("The fox", seed=1, constraint=Wrong()).sequence
    other = lm.stream("A king", seed=1, max_new_tokens=4, ignore_eos=True).sequence
    scheduler = Scheduler(lm.model, prefill_chunk=256)
    for sequence in (wrong, other):
        scheduler.add(sequence)
    while scheduler.busy:
        scheduler.step()
    assert str(wrong.error) == "too large" and not wrong.ids and len(other.ids) == 4


def test_prompts_with_interventions_are_computed_one_in_each_step(lm, monkeypatch):
    """A hook must see a whole prompt, however long; the others wait, so that streams go on."""
    options = {"interventions": zero_head(0, 0), "max_new_tokens": 3, "ignore_eos": True}
    prompts = [STORY * n for n in (4, 3, 5)]
    streams = [lm.stream(prompt, seed=1, **options) for prompt in prompts]
    scheduler, sizes, forward = Scheduler(lm.model, prefill_chunk=64), [], lm.model.forward

    def record(sequences, *args, **kwargs):
        sizes.extend(map(len, sequences))
        return forward(sequences, *args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", record)
    for stream in streams:
        scheduler.add(stream.sequence)
    while scheduler.busy:
        sizes.clear()
        scheduler.step()
        assert sum(size > 1 for size in sizes) <= 1
    for stream, prompt in zip(streams, prompts, strict=True):
        assert stream.sequence.ids == lm.generate(prompt, seed=1, **options).ids
