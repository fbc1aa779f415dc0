"""Batches: a sequence gets the same ids alone and in any batch, whenever it joins."""

import numpy as np
import pytest
from helpers.decoding import decode_step
from helpers.near_ties import assert_fell_otherwise, watch

from gpt2np import GPT2, GenerationOptions, InvalidArgumentError
from gpt2np.generation.drafts import NgramDrafter
from gpt2np.generation.request import Callbacks, Request
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import start_sequence


def random_options(rng, vocab_size, longest=24):
    """Random values of all options that change ids."""
    options = {"max_new_tokens": int(rng.integers(1, longest)), "seed": int(rng.integers(1000))}
    options["temperature"] = float(rng.choice([0, 0, 0.7, 1.0, 1.5]))
    for name, values in {
        "top_k": [0, 5, 40],
        "top_p": [1.0, 0.9, 0.5],
        "min_p": [0.0, 0.02],
        "typical_p": [1.0, 0.8],
        "repetition_penalty": [1.0, 1.3],
        "frequency_penalty": [0.0, 0.5],
        "no_repeat_ngram_size": [0, 0, 3],
        "draft": ["none", "auto"],
    }.items():
        options[name] = rng.choice(values).item()
    ids = rng.integers(0, vocab_size, 6).tolist()
    for name, values in {
        "presence_penalty": [0.0, 0.0, 0.7],
        "logit_bias": [{}, {}, {ids[0]: 3.0, ids[1]: -5.0, vocab_size - 1: 2.0}],
        "bad_words_ids": [(), (), [[ids[2]], [ids[3], ids[4]]]],
        "stop_token_ids": [(), (), [ids[5]]],
        "min_new_tokens": [0, 0, options["max_new_tokens"] // 2],
        "logprobs": [None, None, 2],
    }.items():
        options[name] = values[int(rng.integers(len(values)))]
    return GenerationOptions(**options)


def stop_pair(ids, logits):
    """Stop once five divides the sum of the last two ids."""
    return len(ids) > 4 and sum(ids[-2:]) % 5 == 0


class EveryThird:
    """Constraint: consecutive ids differ modulo three."""

    complete = False

    def __init__(self, vocab_size, last=0):
        self.vocab_size, self.last = vocab_size, last

    def allowed(self):
        return np.arange(self.vocab_size) % 3 != self.last % 3

    def advance(self, token_id):
        return EveryThird(self.vocab_size, token_id)


def start(model, prompt, options, eos_token_ids):
    constraint = EveryThird(model.config.vocab_size) if options.seed % 3 == 0 else None
    callbacks = Callbacks(stopping_criteria=(stop_pair,)) if options.seed % 4 == 0 else Callbacks()
    request = Request(prompt, options, eos_token_ids, constraint=constraint, callbacks=callbacks)
    sequence = start_sequence(model, request)
    if options.draft == "auto":
        sequence.drafter = NgramDrafter(lambda: None)
    return sequence


def alone(model, prompt, options, eos_token_ids):
    """Run a sequence alone, without drafts; return it with the margin of each choice."""
    sequence = start(model, prompt, options, eos_token_ids)
    sequence.drafter = None
    gaps = watch(sequence)
    while sequence.finish_reason is None:
        decode_step(model, [sequence])
    return sequence, gaps


def run_batch(model, rng, jobs, eos_token_ids):
    """Run jobs in a batch that they join at random steps; return their sequences in order."""
    scheduler = Scheduler(model, max_running=int(rng.integers(1, 9)))
    sequences = [start(model, *job, eos_token_ids) for job in jobs]
    waiting, ended = list(rng.permutation(len(jobs))), []
    while waiting or scheduler.busy:
        for _ in range(min(len(waiting), int(rng.integers(0, 4)))):
            scheduler.add(sequences[waiting.pop()])
        ended += scheduler.step()
        assert len(scheduler.running) <= 8
    assert sorted(map(id, ended)) == sorted(map(id, sequences))
    return sequences


def random_jobs(rng, vocab_size, longest):
    """Random prompts, some repeated, with random options."""
    jobs = []
    for _ in range(rng.integers(2, 8)):
        again = jobs and rng.random() < 0.3
        prompt = rng.integers(0, vocab_size, rng.integers(1, 25)).tolist()
        options = random_options(rng, vocab_size, longest)
        jobs.append((jobs[-1][0] if again else prompt, options))
    return jobs


def check_batches(model, rng, batches, vocab_size, longest):
    for _ in range(batches):
        eos_token_ids = set(rng.choice(vocab_size, 3).tolist())
        jobs = random_jobs(rng, vocab_size, longest)
        for batched, job in zip(run_batch(model, rng, jobs, eos_token_ids), jobs, strict=True):
            single, gaps = alone(model, *job, eos_token_ids)
            if batched.ids != single.ids:
                assert_fell_otherwise(batched.ids, single.ids, gaps)
            else:
                assert batched.finish_reason == single.finish_reason


SLOW = {"marks": pytest.mark.slow}


@pytest.mark.parametrize(
    ("name", "seed", "batches", "longest"),
    [
        *(("random", 31, 5, 24), pytest.param("random", 31, 200, 24, **SLOW)),
        *(("bundled", 32, 1, 20), pytest.param("bundled", 33, 200, 60, **SLOW)),
    ],
)
def test_random_batches(model, bundled, name, seed, batches, longest):
    model = GPT2.from_folder(bundled) if name == "bundled" else model
    rng, vocab_size = np.random.default_rng(seed), model.config.vocab_size
    check_batches(model, rng, batches, vocab_size, longest)


class TestScheduler:
    def options(self, **given):
        return GenerationOptions(**{"max_new_tokens": 5, "seed": 0} | given)

    def test_first_come_first_served(self, model):
        scheduler = Scheduler(model, max_running=2)
        sequences = [start_sequence(model, Request([1, i], self.options())) for i in range(5)]
        assert not scheduler.busy and scheduler.free == 2
        for sequence in sequences:
            scheduler.add(sequence)
        assert scheduler.free == 0 and scheduler.step() == []
        assert scheduler.running == sequences[:2] and [*scheduler.waiting] == sequences[2:]
        ended = []
        while scheduler.busy:
            ended += scheduler.step()
        assert ended == sequences and scheduler.step() == []
        assert all(sequence.cache.length == 0 for sequence in sequences)

    def test_the_same_order_each_time(self, model, monkeypatch):
        passes, forward = [], model.forward
        monkeypatch.setattr(
            model, "forward", lambda new, *a, **k: passes.append(new) or forward(new, *a, **k)
        )
        runs = []
        for _ in range(3):
            scheduler = Scheduler(model)
            prompts = [[first] * (1 + first % 3) for first in range(20)]
            kept = [
                start_sequence(model, Request(p, self.options(max_new_tokens=20))) for p in prompts
            ]
            for sequence in kept[::-1]:  # the addresses of the stores are in another order
                scheduler.add(sequence)
            while scheduler.busy:
                scheduler.step()
            runs.append(passes[:])
            passes.clear()
        assert runs[0] == runs[1] == runs[2]
        assert [ids[0] for ids in runs[0][0]] == list(range(19, 3, -1))

    def test_memory_of_caches_is_bounded(self, model):
        nbytes = 2 * 3 * 24 * 4 * 25  # layers, channels, bytes, tokens
        scheduler = Scheduler(model, cache_bytes=3 * nbytes)
        for _ in range(7):
            scheduler.add(start_sequence(model, Request([3] * 20, self.options())))
        scheduler.step()
        assert len(scheduler.running) == 3

    def test_sequence_alone_runs_whatever_its_memory(self, model):
        scheduler = Scheduler(model, cache_bytes=1)
        scheduler.add(start_sequence(model, Request([3] * 20, self.options())))
        scheduler.step()
        assert len(scheduler.running) == 1

    @pytest.mark.parametrize("error", [InvalidArgumentError, KeyError])
    def test_one_that_fails_does_not_hurt_the_others(self, model, error):
        """By options that ban every token, or by an error of the constraint."""

        class Broken(EveryThird):
            def allowed(self):
                raise KeyError("no grammar")

        scheduler = Scheduler(model)
        banned = self.options(bad_words_ids=[[i] for i in range(211)])
        request = Request([1], self.options(), constraint=Broken(211))
        bad = start_sequence(model, request if error is KeyError else Request([1], banned))
        good = start_sequence(model, Request([1], self.options()))
        scheduler.add(bad)
        scheduler.add(good)
        assert scheduler.step() == [bad]
        assert isinstance(bad.error, error) and bad.finish_reason == "cancelled"
        while scheduler.busy:
            scheduler.step()
        assert len(good.ids) == 5 and good.error is None


def test_sequences_that_share_a_prompt_with_log_probabilities_have_the_ids_of_each_alone(model):
    options = GenerationOptions(max_new_tokens=5, temperature=0, prompt_logprobs=2)
    request = Request([9, 8, 7, 6, 5] * 4, options)
    first, second, alone = (start_sequence(model, request) for _ in range(3))
    for batch in ([first, second], [alone]):
        while running := [each for each in batch if each.finish_reason is None]:
            decode_step(model, running)
    assert len(first.prompt_logprobs) == len(second.prompt_logprobs) == len(alone.prompt_logprobs)
    assert first.ids == second.ids == alone.ids
