"""Speculative decoding changes the speed, not the result."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gpt2np import GPT2, GenerationOptions, LanguageModel
from gpt2np.generation.drafts import MAX_ROWS, NgramDrafter
from gpt2np.generation.ngram_table import NgramTable, hash_contexts
from gpt2np.generation.request import Request
from gpt2np.generation.sampling import RandomGenerator
from gpt2np.generation.scheduler import propose_drafts
from gpt2np.model import GPT2Config

DRAFT_SOURCE = "gpt2np.generation.drafts"

SETTINGS = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 7},
    "penalties": {"temperature": 1.1, "top_k": 0, "top_p": 0.95, "seed": 3}
    | {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "no_repeat_ngram_size": 5},
}


@pytest.fixture(scope="module")
def lm(lm):
    lm.use_draft("none")
    return lm


@pytest.fixture(autouse=True)
def no_draft_stays(lm):
    yield
    lm.use_draft("none")


@pytest.fixture
def drafting(lm, bundled):
    lm.use_draft(bundled / "ngram_draft.safetensors")
    return lm


def check_same(lm, prompt, **options):
    """Check that drafts do not change the result; return it."""
    plain, result = lm.generate(prompt, **options, draft="none"), lm.generate(prompt, **options)
    assert same(result, plain)
    assert all(map(same, result.alternatives, plain.alternatives))
    return result


def same(a, b):
    return (a.ids, a.text, a.finish_reason) == (b.ids, b.text, b.finish_reason)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("new_tokens", [12, pytest.param(30, marks=pytest.mark.slow)])
def test_alone_and_with_stops(drafting, setting, new_tokens):
    lm, options = drafting, SETTINGS[setting] | {"max_new_tokens": new_tokens}
    prompts = ["one two three, one two three, one", "a\n" * 9, "The king said"]
    for prompt in prompts[: 2 if new_tokens == 12 else 3]:
        stop = check_same(lm, prompt, **options).text[25:28] or "zz"
        stopped = check_same(lm, prompt, **options, stop=stop)
        assert "".join(lm.stream(prompt, **options, stop=stop)) == stopped.text


@pytest.mark.parametrize("room", [12, pytest.param(42, marks=pytest.mark.slow)])
def test_until_the_context_is_full(drafting, room):
    """The context has `room` for tokens after the prompt."""
    weights = dict(drafting.model.weights)
    weights["wpe.weight"] = weights["wpe.weight"][:128]
    model = GPT2(replace(drafting.model.config, n_positions=128), weights)
    lm = LanguageModel(model, drafting.tokenizer)
    lm.draft_source.draft = drafting.draft_source.draft
    prompt = (lm.tokenizer.encode("he said, and he said, and ") * 20)[room - 128 :]
    options = {"temperature": 0, "max_new_tokens": 2 * room, "seed": 1}
    plain = check_same(lm, prompt, **options)
    assert plain.finish_reason == "length"
    assert len(plain.ids) == room + 1


def test_drafts_save_passes(drafting, monkeypatch):
    lm, passes = drafting, []
    forward = lm.model.forward
    monkeypatch.setattr(lm.model, "forward", lambda *a, **k: passes.append(1) or forward(*a, **k))
    prompt = "\n".join(f"{i}. apples and pears" for i in range(1, 9))
    lm.generate(prompt, temperature=0, max_new_tokens=80, draft="none")
    plain, passes[:] = len(passes), []
    lm.generate(prompt, temperature=0, max_new_tokens=80)
    assert plain == 80 and len(passes) <= 40


def test_automatic_drafts_need_exact_rows(lm, drafting, monkeypatch):
    """Without small-matrix kernels, the number of rows would change the last bits of logits."""
    table = lm.draft_source.draft
    for draft, exact, expected in [
        ("auto", True, NgramDrafter),
        ("auto", False, type(None)),
        (table, False, NgramDrafter),
        (None, True, type(None)),
    ]:
        monkeypatch.setattr(lm.draft_source, "draft", draft)
        monkeypatch.setattr(f"{DRAFT_SOURCE}.small_kernels", lambda exact=exact: exact)
        assert type(lm.stream("The").sequence.drafter) is expected
        assert lm.stream("The", draft="none").sequence.drafter is None
        assert lm.stream("The", max_new_tokens=1).sequence.drafter is None


def test_the_table_is_read_for_the_first_draft(bundled, monkeypatch):
    lm, reads = LanguageModel.load(bundled), []
    monkeypatch.setattr(f"{DRAFT_SOURCE}.small_kernels", lambda: True)
    monkeypatch.setattr(
        "gpt2np.generation.ngram_table.find_ngram_table", lambda *_: reads.append(1)
    )
    stream = lm.stream("Once upon a time", max_new_tokens=9)
    next(stream)
    assert reads == []
    next(stream)
    lm.generate("The king", max_new_tokens=9)
    assert reads == [1]


def table_of(entries, vocab_size=100):
    """Build a table from context → (next id, probability in units of 1/256)."""
    hashes = []
    for context in entries:
        key = sum(i * vocab_size**n for n, i in enumerate(context[::-1]))
        hashes.append(int(hash_contexts(np.array([key], np.uint64), len(context))[0]))
    rows = sorted(zip(hashes, entries.values(), strict=True))
    return NgramTable(
        vocab_size,
        "",
        np.array([row[0] for row in rows], np.uint32),
        np.array([row[1][0] for row in rows], np.uint16),
        np.array([row[1][1] for row in rows], np.uint8),
    )


class TestNgramDrafter:
    def propose(self, ids, length=4, table=None):
        return NgramDrafter(lambda: table).propose(ids, [], length)[0]

    def test_by_hand(self):
        assert self.propose([1, 2, 3, 4, 5, 1, 2]) == [3, 4, 5, 1]
        ids = [1, 2, 3, 9, 2, 3, 7, 1, 2, 3]
        assert self.propose(ids) == [9, 2, 3, 7]  # the longer n-gram first
        ids = [1, 2, 3, 1, 2, 4, 1, 2]
        assert self.propose(ids) == [4, 1, 2, 4]  # the latest occurrence; then the draft itself
        assert self.propose([7, 7, 7], 4) == [7] * 4
        assert self.propose([1, 2, 3, 4]) == self.propose([5]) == []
        assert self.propose([1, 2, 1, 2], 0) == []

    def test_a_table(self):
        table = table_of({(): (9, 10), (1,): (2, 200), (1, 2): (3, 200), (7, 1, 2): (4, 200)})
        assert self.propose([5, 1], 2, table) == [2, 3]
        assert self.propose([5, 7, 1], 2, table) == [2, 4]  # the longest context first
        assert self.propose([5, 6], 3, table) == [9]  # too unlikely to go on

    def test_ids_without_an_embedding(self):
        table = table_of({(1,): (2, 200), (2,): (3, 200)})
        source = NgramDrafter(lambda: table)
        assert source.propose([5, 1], [], 2, vocab_size=4)[0] == [2, 3]
        assert source.propose([5, 1], [], 2, vocab_size=3)[0] == [2]

    def test_the_likelier_source(self):
        """A wrong match in the text is worth less and less."""
        table = table_of({(): (9, 1), (2,): (8, 120)})
        draft = NgramDrafter(lambda: table)
        prompt, ids = [1, 2, 3, 1, 2], []
        assert draft.propose(prompt, ids, 1)[0] == [3]
        draft.update([7])
        ids += [7, 1, 2]
        assert draft.propose(prompt, ids, 1)[0] == [8]

    def test_tokens_without_drafts_count(self):
        """A proposal that is not verified is compared with the model's own token."""
        draft = NgramDrafter(lambda: None)
        ids = [1, 2]
        probabilities = []
        for _ in range(10):
            ids += [3, 1, 2]
            probabilities.append(draft.propose([], ids, 1)[1][0])
            draft.update([3])
        assert probabilities[0] == 0.5 and probabilities[-1] > 0.8
        assert probabilities == sorted(probabilities)

    def test_step_by_step_as_at_once(self):
        rng = np.random.default_rng(0)
        for _ in range(100):
            ids, draft = rng.integers(0, 4, 30).tolist(), NgramDrafter(lambda: None)
            cut = int(rng.integers(1, 10))
            prompt, generated = ids[:cut], []
            while len(generated) < len(ids) - cut:
                result = draft.propose(prompt, generated, 3)[0]
                assert result == self.propose([*prompt, *generated], 3)
                generated = ids[cut : cut + len(generated) + int(rng.integers(1, 4))]


class Listed:
    """A sequence whose proposal is given, for the distribution of free rows."""

    ids, length, tokens_left = [], 1, 100
    model = SimpleNamespace(config=GPT2Config(vocab_size=100))
    n_pending, scores_prompt = 1, False
    request = Request([1], GenerationOptions())

    def __init__(self, *probabilities):
        self.drafter = NgramDrafter(lambda: None)
        steps = np.cumprod(probabilities).tolist()
        self.drafter.propose = lambda prompt, ids, length, *limits: (
            [*range(len(steps[:length]))],
            steps[:length],
        )


class TestRows:
    def lengths(self, *batch):
        return [len(draft) for draft in propose_drafts(batch)]

    def test_alone(self):
        assert self.lengths(Listed(0.001)) == [0]  # not worth the search
        assert self.lengths(Listed(0.2, 0.9, 0.9)) == [3]
        assert self.lengths(Listed(0.1, 0.1, 0.1)) == [1]  # a second row is free, a third is not
        assert self.lengths(Listed(*[1.0] * 40)) == [15]

    def test_the_likeliest_of_a_batch(self):
        sure, unsure = Listed(*[0.99] * 15), Listed(*[0.3] * 15)
        first, second = self.lengths(sure, unsure)
        assert first > second and first + second <= MAX_ROWS - 2
        assert self.lengths(*[sure] * MAX_ROWS) == [0] * MAX_ROWS


def test_random_numbers_ahead_are_those_that_come():
    stream, plain = RandomGenerator(5), np.random.default_rng(5)
    looked_at = [stream.number(2), stream.number(3)]
    drawn = [stream.number(i) for i in range(6)]
    assert drawn == [plain.random() for _ in range(6)] and looked_at == drawn[2:4]
