"""The forward pass: cache, packing, hook, dtypes, bounds."""

import numpy as np
import pytest
from helpers.references import reference_logits

from gpt2np import GPT2, ContextLengthError, InvalidArgumentError
from gpt2np.model import last_token_indices


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(3).integers(0, 211, 48)


class TestCache:
    def test_one_token_at_a_time(self, model, tiny, ids):
        caches = [model.new_cache()]
        rows = [model.forward([[i]], caches)[0] for i in ids]
        np.testing.assert_allclose(np.stack(rows), reference_logits(tiny[1], ids), atol=1e-4)

    def test_truncating_to_more_tokens_than_cached_is_an_error(self, model, ids):
        cache = model.new_cache()
        model.forward([ids[:20]], [cache])
        with pytest.raises(InvalidArgumentError, match="a cache of 20 tokens can be truncated"):
            cache.truncate(21)


class TestHook:
    # S = 2 sequences of 5 and 3 new tokens after 4 and 0 cached ones, R = 2 rows.
    def documented_points(self, layers):
        c, h, d, f, v = 24, 3, 8, 96, 211
        points = [("embed", (8, c))]
        for i in range(layers):
            at = f"blocks.{i}"
            points.append((f"{at}.ln_1", (8, c)))
            for n in (5, 3):
                points += [(f"{at}.attn.{name}", (h, n, d)) for name in "qkv"]
            for n, t in ((5, 9), (3, 3)):
                points += [(f"{at}.attn.pattern", (h, n, t)), (f"{at}.attn.z", (h, n, d))]
            rows = 8 if i < layers - 1 else 2
            points += [(f"{at}.{name}", (rows, c)) for name in ("attn.out", "resid_mid", "ln_2")]
            points += [(f"{at}.mlp.pre", (rows, f)), (f"{at}.mlp.act", (rows, f))]
            points += [(f"{at}.mlp.out", (rows, c)), (f"{at}.resid", (rows, c))]
        return [*points, ("ln_f", (2, c)), ("logits", (2, v))]

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_points_shapes_and_dtypes_are_as_documented(self, tiny, ids, dtype):
        model = GPT2.from_folder(tiny[0], dtype)
        caches = [model.new_cache(), model.new_cache()]
        model.forward([ids[:4]], caches[:1])
        seen = []

        def record(name, array):
            seen.append((name, array.shape))
            assert array.dtype == dtype, name
            return array

        sequences = [ids[4:9], ids[9:12]]
        model.forward(sequences, caches, logits_indices=last_token_indices(sequences), hook=record)
        assert seen == self.documented_points(model.config.n_layer)


class TestBounds:
    def test_the_whole_context_and_not_one_token_more(self, model, ids):
        cache = model.new_cache()
        assert model.forward([ids], [cache]).shape == (48, 211)
        with pytest.raises(ContextLengthError, match=r"49 tokens .* 48"):
            model.forward([[1]], [cache])
        assert cache.length == 48

    @pytest.mark.parametrize(
        ("sequences", "message"),
        [
            *(([[5, 211]], "id 211"), ([[-1]], "id -1"), ([[]], "no ids"), ([], "no sequences")),
            *(([[1.5]], "integers"), ([[[1]]], "list of integers")),
            ([5, 6, 7], r"as in \[\[5, 6, 7\]\]"),
        ],
    )
    def test_impossible_input_is_named(self, model, sequences, message):
        with pytest.raises(InvalidArgumentError, match=message):
            model.forward(sequences)

    @pytest.mark.parametrize("rows", [[3], [-1], [True, False, True], [0.0]])
    def test_impossible_rows_are_refused_before_anything_is_computed(self, model, rows):
        cache = model.new_cache()
        with pytest.raises(InvalidArgumentError, match="logits_indices must be"):
            model.forward([[1, 2, 3]], [cache], logits_indices=rows)
        assert cache.length == 0

    def test_two_sequences_can_not_share_a_cache(self, model):
        cache = model.new_cache()
        with pytest.raises(InvalidArgumentError, match="all different"):
            model.forward([[1], [2]], [cache, cache])
