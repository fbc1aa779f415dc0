"""boundary="text": the continuation of a text, against sums over all covering sequences."""

import json
import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from helpers.equal_results import assert_equal_results
from helpers.random_models import random_model
from helpers.random_vocabularies import canonical_covers, random_tokenizer

from gpt2np import (
    GPT2,
    BatchError,
    ContextLengthError,
    InvalidArgumentError,
    LanguageModel,
    Tokenizer,
)
from gpt2np.generation.boundary import find_covers
from gpt2np.generation.sequence import CoveredPrefix
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN

SHAPE = {"n_embd": 16, "n_head": 2, "n_inner": 32, "n_layer": 2, "n_positions": 32}
PLAIN = {"temperature": 1.0, "top_k": 0}
END = "end of text"


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.load("bundled")


def random_lm(rng, alphabet, n_merges, scale=0.5):
    tokenizer = random_tokenizer(rng, alphabet, n_merges, (GPT2_PATTERN,))
    model = random_model(np.float64, vocab_size=tokenizer.vocab_size, scale=scale, **SHAPE)
    return LanguageModel(model, tokenizer)


class Sequences:
    """Probabilities of token sequences, by plain forward passes."""

    def __init__(self, lm):
        self.lm, self.known = lm, {}

    def logprobs(self, ids):
        """Return the log probability of each next token, (V,)."""
        if ids not in self.known:
            [logits] = self.lm.model.forward([list(ids)], logits_indices=[len(ids) - 1])
            self.known[ids] = logits - np.logaddexp.reduce(logits)
        return self.known[ids]

    def logprob(self, ids, n_before):
        return sum(self.logprobs(ids[:n])[ids[n]] for n in range(n_before, len(ids)))

    def next_bytes(self, starts, n_text, n_bytes):
        """Return the distribution of the next bytes; `starts` has the log weight of each cover."""
        table = self.lm.tokenizer.vocabulary.token_bytes
        end = self.lm.bos_token_id
        total = np.logaddexp.reduce(list(starts.values()))
        result = defaultdict(float)

        def go_on(ids, data, logprob):
            if len(data) >= n_text + n_bytes:
                result[data[n_text : n_text + n_bytes]] += math.exp(logprob)
                return
            for token_id, more in enumerate(self.logprobs(ids)):
                if token_id == end:
                    result[END] += math.exp(logprob + more)
                else:
                    go_on((*ids, token_id), data + table[token_id], logprob + more)

        for ids, weight in starts.items():
            data = b"".join(table[token_id] for token_id in ids if token_id != end)
            go_on(ids, data, weight - total)
        return result


def expected_covers(lm, text, alphabet, sequences):
    """Return the log probability of each canonical cover of a text; all follow the end of text."""
    before = (lm.bos_token_id,)
    covers = canonical_covers(lm.tokenizer, text.encode(), alphabet)
    return {before + ids: sequences.logprob(before + ids, 1) for ids in covers}


def library_covers(lm, ids, **options):
    """Return the log probability of each cover as the library computes it, after the root."""
    [stream] = lm.streams(ids, boundary="text", seed=0, **PLAIN | options)
    prefix = stream.sequence.shared_prefix
    assert isinstance(prefix, CoveredPrefix)
    while not prefix.is_computed:
        prefix.compute(lm.model, 3)
    return {
        (*branch.ids, token_id): logprob
        for branch in prefix.covers.branches
        for token_id, logprob in zip(
            branch.last.tolist(),
            prefix.covers._processed(prefix.tree, branch, lambda ids, logits: logits),
            strict=True,
        )
    }


@pytest.mark.parametrize(
    ("n_bytes", "n_merges", "alphabet", "n_models"),
    [
        (1, 35, "ab '!s", 8),
        (1, 16, "ab !\n", 8),
        (2, 20, "ab !", 8),
        (3, 8, "a b", 8),
        (4, 5, "ab", 8),
        (5, 4, "ab", 4),
        (6, 4, "a ", 3),
    ],
)
def test_next_bytes_equal_the_sum_over_all_covering_sequences(
    n_bytes, n_merges, alphabet, n_models
):
    rng = random.Random(n_bytes)
    for _ in range(n_models):
        lm = random_lm(rng, alphabet, n_merges)
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 5)))
        sequences = Sequences(lm)
        covers = expected_covers(lm, text, alphabet, sequences)
        expected = sequences.next_bytes(covers, len(text), n_bytes)
        found = library_covers(lm, [lm.bos_token_id, *lm.tokenizer.encode(text)])
        assert found.keys() == covers.keys()
        result = sequences.next_bytes(found, len(text), n_bytes)
        assert result == pytest.approx(expected, rel=0, abs=1e-9)
        assert sum(result.values()) == pytest.approx(1, abs=1e-9)


def test_samples_have_the_distribution_of_the_text():
    rng = random.Random(3)
    lm = random_lm(rng, "ab ", 9)
    sequences = Sequences(lm)
    covers = expected_covers(lm, "ab a", "ab ", sequences)
    expected = sequences.next_bytes(covers, 4, 1)
    ids = [lm.bos_token_id, *lm.tokenizer.encode("ab a")]
    n, counts = 1500, Counter()
    for seed in range(0, n, 500):
        options = {**PLAIN, "seed": seed, "num_return_sequences": 500, "max_new_tokens": 2}
        completion = lm.generate(ids, boundary="text", **options)
        texts = [c.text for c in (completion, *completion.alternatives)]
        counts += Counter(text[:1].encode() or END for text in texts)
    chi_square = sum((counts[k] - n * p) ** 2 / (n * p) for k, p in expected.items())
    assert len(expected) == 4
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_greedy_selects_the_most_likely_cover():
    rng = random.Random(4)
    for _ in range(20):
        lm = random_lm(rng, "ab ", 9)
        sequences = Sequences(lm)
        covers = expected_covers(lm, "b a", "ab ", sequences)
        best = max(covers, key=covers.get)
        prompt = [lm.bos_token_id, *lm.tokenizer.encode("b a")]
        result = lm.generate(prompt, boundary="text", temperature=0, max_new_tokens=1)
        assert tuple(result.prompt_ids + result.ids)[: len(best)] == best


def test_filters_apply_to_the_probabilities_of_the_covers():
    rng = random.Random(5)
    lm = random_lm(rng, "ab ", 12)
    prompt = [lm.bos_token_id, *lm.tokenizer.encode("b a")]
    covers = library_covers(lm, prompt)
    best = sorted(covers, key=covers.get)[-2:]
    results = lm.generate(
        prompt, boundary="text", top_k=2, seed=0, num_return_sequences=100, max_new_tokens=1
    )
    drawn = Counter(
        next(c for c in covers if tuple(r.prompt_ids + r.ids)[: len(c)] == c)
        for r in (results, *results.alternatives)
    )
    assert set(drawn) == set(best)


def brute_score(lm, text, alphabet, sequences):
    return np.logaddexp.reduce([*expected_covers(lm, text, alphabet, sequences).values()])


def test_scores_equal_the_sum_over_all_covering_sequences():
    rng = random.Random(6)
    for _ in range(10):
        lm = random_lm(rng, "ab !", rng.randint(0, 20))
        sequences = Sequences(lm)
        text = "".join(rng.choices("ab !", k=6))
        n_given = rng.randint(1, 5)
        both, given = (brute_score(lm, t, "ab !", sequences) for t in (text, text[:n_given]))
        assert lm.score(text, boundary="text").total == pytest.approx(both, abs=1e-9)
        score = lm.score(text[n_given:], given=text[:n_given], boundary="text")
        assert score.total == pytest.approx(both - given, abs=1e-9)
        assert "".join(score.tokens) == text[n_given:]
        assert "".join(word.text for word in score.by_token()) == text[n_given:]
        assert len(lm.score("", given=text, boundary="text").ids) == 0


def test_a_text_is_as_likely_as_all_that_can_follow():
    """P(text) = Σ P(text + byte) + P(end) + P(tokens that are not canonical) at each byte."""
    rng = random.Random(7)
    for _ in range(5):
        alphabet = "ab !"
        lm = random_lm(rng, alphabet, 10)
        sequences, end = Sequences(lm), (lm.bos_token_id,)
        text = "".join(rng.choices(alphabet, k=5))
        for n in range(1, 6):
            known = text[:n]
            whole = end + tuple(lm.tokenizer.encode(known))
            covers = canonical_covers(lm.tokenizer, known.encode(), alphabet)
            wholes = [end + c for c in covers if lm.tokenizer.decode(c) == known]
            assert whole in wholes
            longer = [
                (*ids, token_id)
                for ids in wholes
                for token_id in range(lm.tokenizer.vocab_size - 1)
            ]
            continued = {
                end + cover
                for c in alphabet
                for cover in canonical_covers(lm.tokenizer, (known + c).encode(), alphabet)
            }
            others = [ids for ids in longer if ids not in continued]
            ends = [(*ids, *end) for ids in wholes]
            rest = sum(math.exp(sequences.logprob(ids, 1)) for ids in [*others, *ends])
            following = sum(math.exp(lm.score(known + c, boundary="text").total) for c in alphabet)
            total = math.exp(lm.score(known, boundary="text").total)
            assert following + rest == pytest.approx(total, rel=1e-9)


def test_scores_with_the_vocabulary_of_gpt2_follow_the_chain_rule(gpt2_vocabulary):
    tokenizer = Tokenizer.load(gpt2_vocabulary)
    shape = SHAPE | {"vocab_size": tokenizer.vocab_size}
    lm = LanguageModel(random_model(np.float64, scale=0.3, **shape), tokenizer)
    text = "He don't  say 1,000 \nwünsche: 東京 "
    whole = lm.score(text, boundary="text").total
    for n in range(1, len(text)):
        first = lm.score(text[:n], boundary="text").total
        rest = lm.score(text[n:], given=text[:n], boundary="text")
        assert first + rest.total == pytest.approx(whole, abs=1e-6)
        assert b"".join(rest.token_bytes) == text[n:].encode()


def test_generation_follows_the_chain_rule_at_each_byte(gpt2_vocabulary):
    """P(text + byte) = P(text) P(byte | text), also within a word, and within a character.

    P(byte | text) comes from the covers of the text, as they are drawn, and plain forward passes.
    """
    tokenizer = Tokenizer.load(gpt2_vocabulary)
    shape = SHAPE | {"vocab_size": tokenizer.vocab_size}
    lm = LanguageModel(random_model(np.float64, scale=0.3, **shape), tokenizer)
    sequences, table = Sequences(lm), tokenizer.vocabulary.token_bytes
    text = "He don't  say 1,000 \nwünsche: 東京👍🏽"
    data = text.encode()
    before = None
    for n in range(1, len(data) + 1):
        known = data[:n].decode("utf-8", "surrogateescape")
        ids = [lm.bos_token_id, *tokenizer.encode(known, errors="surrogateescape")]
        root = find_covers(tokenizer, ids, 1, None).root
        root_logprob = sequences.logprob(root, 1)
        covers = {cover: root_logprob + x for cover, x in library_covers(lm, ids).items()}
        spelled = {cover: b"".join(table[i] for i in cover[1:]) for cover in covers}
        if before:
            longer, wholes = before
            expected = {c: x for c, (x, text) in longer.items() if text[:n] == data[:n]}
            for cover in covers.keys() - expected.keys():
                expected[cover] = wholes[cover[:-1]] + sequences.logprobs(cover[:-1])[cover[-1]]
            assert covers.keys() == expected.keys()
            sums = (np.logaddexp.reduce([*logprobs.values()]) for logprobs in (covers, expected))
            assert next(sums) == pytest.approx(next(sums), abs=1e-9)
        longer = {c: (x, spelled[c]) for c, x in covers.items() if len(spelled[c]) > n}
        before = longer, {c: x for c, x in covers.items() if len(spelled[c]) == n}
    total = np.logaddexp.reduce([*covers.values()])
    assert lm.score(text, boundary="text").total == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("prompt", ["Once upon a time ", "The fo", 'He said, "I do', "Th", "a"])
def test_the_text_follows_the_prompt(lm, prompt):
    options = {"boundary": "text", "max_new_tokens": 6, "seed": 2, "prompt_logprobs": 1}
    result = lm.generate(prompt, **options, logprobs=1, num_return_sequences=3)
    for completion in (result, *result.alternatives):
        ids = [i for i in completion.prompt_ids if i != lm.bos_token_id] + completion.ids
        assert lm.tokenizer.decode(ids) == prompt + completion.text
        assert completion.prompt == prompt and len(completion.ids) == 6
        whole = [*completion.prompt_ids, *completion.ids]
        score = lm.score(whole, from_end_of_text=False)
        found = [*completion.prompt_logprobs[1:], *completion.logprobs]
        assert [token.logprob for token in found] == pytest.approx(score.logprobs[1:], abs=1e-4)
        stream = lm.stream(prompt, **options | {"seed": completion.seed})
        assert "".join(stream) == completion.text
    prompts = ["The king", prompt, prompt]
    batch = lm.generate_batch(prompts, **options)
    assert batch[1].text == lm.generate(prompt, **options | {"seed": 3}).text


def test_a_prompt_that_ends_with_a_word_goes_on_as_usual(lm):
    for prompt in ["Once upon a time", "There was a king,"]:
        options = {"max_new_tokens": 10, "temperature": 0}
        usual = lm.generate(prompt, **options)
        assert lm.generate(prompt, boundary="text", **options).ids == usual.ids
    assert lm.generate("", boundary="text", seed=1).text == lm.generate("", seed=1).text
    notice = lm.generate("Once upon a time ", max_new_tokens=1).notice
    assert 'boundary="text"' in notice
    assert lm.generate("Once upon a time ", boundary="text", max_new_tokens=1).notice is None


@pytest.mark.parametrize("n_steps", [0, 1, 3, 500])
@pytest.mark.parametrize("prompt", ["The fo", "Once upon a time, the fox"])
def test_a_saved_stream_goes_on_with_the_same_text(lm, prompt, n_steps):
    options = {"boundary": "text", "max_new_tokens": 8, "seed": 4, "prompt_logprobs": 0}
    whole = lm.generate(prompt, **options)
    stream = lm.stream(prompt, **options)
    for _ in range(n_steps):
        if stream.running:
            stream.step()
    assert lm.resume(json.loads(json.dumps(stream.state))).state == stream.state
    resumed = lm.resume(json.loads(json.dumps(stream.state)))
    for _ in resumed:
        pass
    assert_equal_results(resumed.completion, whole)


def test_a_new_token_obeys_penalties_bans_and_processors(lm):
    [forest] = lm.tokenizer.encode(" forest")
    options = {"boundary": "text", "temperature": 0, "max_new_tokens": 1}
    assert lm.generate("The fo", **options).ids == [forest]

    def ban(ids, logits):
        logits[forest] = -np.inf
        return logits

    for change in (
        {"logit_bias": {forest: -100.0}},
        {"bad_words": ["forest"]},
        {"logits_processor": ban},
    ):
        assert lm.generate("The fo", **options, **change).ids != [forest]
    stopped = lm.generate("The fo", **options | {"max_new_tokens": 9}, stop="st was")
    assert (stopped.text, stopped.finish_reason) == ("re", "stop")
    assert lm.generate("The fo", **options, stop_token_ids=[forest]).finish_reason == "stop"


def test_an_error_in_a_callback_ends_one_text_only(lm):
    def fail(ids, logits):
        raise RuntimeError("no")

    sets = [{}, {"logits_processor": fail}, {}]
    options = {"boundary": "text", "max_new_tokens": 3, "seed": 1}
    with pytest.raises(BatchError) as caught:
        lm.generate_batch(["The fo"] * 3, sets, **options)
    reasons = [completion.finish_reason for completion in caught.value.completions]
    assert reasons == ["length", "cancelled", "length"]


def test_a_prefix_keeps_its_tokens(lm):
    prefix = lm.prefix("Once upon a time")
    result = lm.generate(
        " there was a ki", prefix=prefix, boundary="text", temperature=0, max_new_tokens=2
    )
    assert result.prompt_ids[: len(prefix.ids)] == prefix.ids
    joined = lm.tokenizer.decode(result.prompt_ids + result.ids)
    assert joined == "Once upon a time there was a ki" + result.text
    assert result.text.startswith("ng")
    assert lm.generate("", prefix=prefix, boundary="text", seed=1, max_new_tokens=3).text


def test_a_long_prompt_with_a_window(lm):
    prompt = "There was once a king who had a fo" * 80
    options = {"boundary": "text", "window": 20, "max_new_tokens": 4, "seed": 1}
    result = lm.generate(prompt, **options, prompt_logprobs=0)
    assert len(result.prompt_ids) > lm.model.config.n_positions
    assert lm.tokenizer.decode(result.prompt_ids + result.ids) == prompt + result.text
    stream = lm.stream(prompt, **options)
    stream.step()
    resumed = lm.resume(stream.state)
    assert "".join(resumed) == result.text


def test_a_prompt_as_long_as_the_context():
    rng = random.Random(8)
    lm = random_lm(rng, "ab ", 9)
    for n in (31, 32):
        ids = [lm.bos_token_id, *lm.tokenizer.encode(" a" * 40)[: n - 1]]
        result = lm.generate(ids, boundary="text", seed=1, max_new_tokens=5)
        text = lm.tokenizer.decode(ids[1:])
        joined = lm.tokenizer.decode(result.prompt_ids[1:] + result.ids)
        assert joined.startswith(text) and result.finish_reason in ("length", "eos")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"regex": "a+"}, "boundary 'text' cannot be combined with regex"),
        ({"choices": ["a"]}, "boundary 'text' cannot be combined with choices"),
        ({"json_schema": {"type": "null"}}, "boundary 'text' cannot be combined with json_schema"),
        ({"num_beams": 2}, "num_beams is 2: beam search does not support boundary 'text'"),
        ({"interventions": lambda name, array: None}, "cannot be combined with interventions"),
    ],
)
def test_what_the_option_excludes(lm, arguments, names):
    with pytest.raises(InvalidArgumentError, match=names):
        lm.generate("The fo", boundary="text", **arguments)


def test_what_a_score_excludes(lm):
    for name, value in {"context": 8, "stride": 4, "from_end_of_text": False}.items():
        with pytest.raises(InvalidArgumentError, match=f"cannot be combined with {name}"):
            lm.score("a", boundary="text", **{name: value})
    with pytest.raises(InvalidArgumentError, match="must be a text"):
        lm.score([5, 6], boundary="text")
    with pytest.raises(InvalidArgumentError, match="must be 'tokens' or 'text'"):
        lm.score("a", boundary="word")
    with pytest.raises(ContextLengthError, match="the model's context of"):
        lm.score("a " * 2000, boundary="text")


def test_a_model_without_end_of_text(lm):
    model = GPT2(lm.model.config, dict(lm.model.weights))
    plain = LanguageModel(model, lm.tokenizer)
    plain.bos_token_id = None
    with pytest.raises(InvalidArgumentError, match="needs an end-of-text token before"):
        plain.generate("Th", boundary="text")
