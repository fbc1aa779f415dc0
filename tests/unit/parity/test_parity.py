"""The parity kit: engines with mistakes are located and named; engines that round are right."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from record_bits import random_ids, random_model
from safetensors.numpy import save_file

from gpt2np import GPT2
from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.kernels.array import Array
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.plain import PlainContext, plain_weights
from gpt2np.parity import MISTAKES, Reference, check, check_texts, read_tested
from gpt2np.parity.check import round_to
from gpt2np.parity.mistakes import FLOAT16_TABLE, run_with_mistakes

CONFIGS = {
    "GPT-2": {"vocab_size": 211, "n_embd": 48, "n_head": 4, "n_layer": 2},
    "erf GELU, untied": {
        "vocab_size": 150, "n_embd": 60, "n_head": 3, "n_layer": 2, "n_inner": 100,
        "activation_function": "gelu", "untied": True,
    },
    "scaled by layer": {
        "vocab_size": 97, "n_embd": 64, "n_head": 8, "n_layer": 3, "layer_norm_epsilon": 1e-4,
        "scale_attn_by_inverse_layer_idx": True,
    },
}  # fmt: skip
DTYPES = ["float32", "bfloat16", "float16"]

# One of each kind; the name, and the hook point at which it must be found.
THIRTY = {
    "positions are off by one": "embed",
    "position embeddings are missing": "embed",
    "token ids are off by one": "embed",
    "ln_1 is missing": "blocks.0.ln_1",
    "layer norm: epsilon is 1e-3": "blocks.0.ln_1",
    "layer norm: the variance is divided by C - 1": "blocks.0.ln_1",
    "layer norm: the mean is not subtracted (RMS norm)": "blocks.0.ln_1",
    "layer norm: the bias is missing": "blocks.0.ln_1",
    "layer norm: over the tokens, not the channels": "blocks.0.ln_1",
    "c_attn is transposed": "blocks.0.attn.q",
    "the bias of c_attn is missing": "blocks.0.attn.q",
    "c_attn's thirds are read in the order k, q, v": "blocks.0.attn.q",
    "c_attn's thirds are read in the order q, v, k": "blocks.0.attn.k",
    "heads are interleaved: each head's q, k and v are read side by side": "blocks.0.attn.q",
    "heads are interleaved: channel c of head h is read at c · H + h": "blocks.0.attn.q",
    "the scale 1 / √D is missing": "blocks.0.attn.pattern",
    "the scale is 1 / √C": "blocks.0.attn.pattern",
    "the causal mask is missing": "blocks.0.attn.pattern",
    "the causal mask is off by one: each token sees the next": "blocks.0.attn.pattern",
    "the causal mask is off by one: no token sees itself": "blocks.0.attn.pattern",
    "softmax is over the queries": "blocks.0.attn.pattern",
    "the cache lags: keys are those of the token before": "blocks.0.attn.pattern",
    "the cache lags: values are those of the token before": "blocks.0.attn.z",
    "heads are joined without a transposition of tokens and heads": "blocks.0.attn.out",
    "attention's c_proj is transposed": "blocks.0.attn.out",
    "the residual connection around attention is missing": "blocks.0.resid_mid",
    "the bias of c_fc is missing": "blocks.0.mlp.pre",
    "GELU as x · sigmoid(1.702 x)": "blocks.0.mlp.act",
    "the bias of the MLP's c_proj is missing": "blocks.0.mlp.out",
    "post-norm: the MLP is added to ln_2's output": "blocks.0.resid",
}


def small_model(config: str, **changes: int) -> GPT2:
    """A random model whose layer norms and biases matter."""
    model, rng = random_model(**CONFIGS[config] | changes), np.random.default_rng(1)
    weights = {
        name: array + 0.1 * rng.standard_normal(array.shape) if "ln_" in name else 2 * array
        for name, array in model.weights.items()
    }
    return GPT2(model.config, {name: w.astype(np.float32) for name, w in weights.items()})


def run(model: GPT2, ids: list[int], dtype: str, mistake: str | None = None) -> dict[str, Array]:
    """All arrays of an engine that computes in `dtype`, perhaps with a mistake."""
    weights = {name: round_to(array, dtype) for name, array in model.weights.items()}
    mistakes = [m for m in (*MISTAKES, FLOAT16_TABLE) if m.name == mistake]
    arrays: dict[str, Array] = {}

    def hook(name: str, array: Array) -> Array:
        arrays[name] = round_to(array.astype(np.float32), dtype)
        return arrays[name]

    with np.errstate(all="ignore"):
        run_with_mistakes(mistakes, ids, model.config, weights, hook)
    return arrays


MODEL = small_model("GPT-2")
IDS = random_ids(12, 3, MODEL.config.vocab_size)


def reference_of(ids: list[int]) -> Reference:
    return Reference("x", {"p": ids}, {})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("config", "share"),
    [("GPT-2", "some"), *(pytest.param(name, "all", marks=pytest.mark.slow) for name in CONFIGS)],
)
def test_thirty_mistakes(config: str, share: str, dtype: str) -> None:
    """By default, with one block: all in float32, an eighth in each of the short dtypes."""
    model = small_model(config, **({"n_layer": 1} if share == "some" else {}))
    ids = random_ids(12, 3, model.config.vocab_size)
    assert len(THIRTY) == 30
    mistakes = list(THIRTY)
    if share == "some":
        mistakes = {"bfloat16": mistakes[::8], "float16": mistakes[4::8]}.get(dtype, mistakes)
    named = 0
    for mistake in mistakes:
        report = check(reference_of(ids), run(model, ids, dtype, mistake), model)
        assert report.first is not None and report.first.point == THIRTY[mistake], str(report)
        named += report.mistake == mistake
    assert named >= 0.9 * len(mistakes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", CONFIGS)
def test_no_false_alarm(config: str, dtype: str) -> None:
    model = small_model(config)
    for seed in range(2 if dtype == "float32" else 1):
        ids = random_ids(12, seed, model.config.vocab_size)
        report = check(reference_of(ids), run(model, ids, dtype), model)
        assert report.is_rounding, str(report)
        assert "arrays agree" in str(report)
        one = replace(report, points=report.points[:1])
        assert str(one).startswith("rounding: 1 array agrees within")


TABLE = FLOAT16_TABLE.name


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("points", [["logits"], ["embed", "blocks.1.mlp.act", "ln_f"], None])
def test_a_table_of_float16_is_rounding(config: str, points: list[str] | None) -> None:
    """As in llama.cpp, whose other steps are float32."""
    model = small_model(config)
    ids = random_ids(12, 3, model.config.vocab_size)
    arrays = run(model, ids, "float32", TABLE)
    report = check(reference_of(ids), {p: arrays[p] for p in points or arrays}, model)
    assert report.is_rounding and report.expected_difference == TABLE, str(report)
    assert f" within the rounding of float32 with {TABLE};" in str(report)


def test_one_step_of_float16_beside_a_table_of_float16() -> None:
    """Half of the numbers may round to their other neighbor, but not all of them."""
    arrays = run(MODEL, IDS, "float32", TABLE)
    table = arrays["blocks.1.mlp.act"].astype(np.float16)
    arrays["blocks.1.mlp.act"] = np.nextafter(table, np.float16(9)).astype(np.float32)
    report = check(reference_of(IDS), arrays, MODEL)
    assert report.first is not None and report.first.point == "blocks.1.mlp.act"
    assert report.mistake is None


@pytest.mark.parametrize(("noise", "expected_difference"), [(0.3, TABLE), (2, None)])
def test_a_table_of_float16_explains_most_of_an_error(
    noise: float, expected_difference: str | None
) -> None:
    arrays, name = run(MODEL, IDS, "float32", TABLE), "blocks.0.mlp.act"
    effect = arrays[name] - run(MODEL, IDS, "float32")[name]
    size = noise * np.sqrt(np.mean(effect**2))
    arrays[name] = add(arrays[name], ..., np.random.default_rng(0).normal(0, size, effect.shape))
    given = {point: arrays[point] for point in ("blocks.0.mlp.pre", name)}
    report = check(reference_of(IDS), given, MODEL, "float32")
    assert report.expected_difference == expected_difference, str(report)
    assert report.is_rounding == (expected_difference is not None)


def test_a_mistake_that_explains_little_is_not_named() -> None:
    """Two mistakes at one point: neither explains the array."""
    arrays = run(MODEL, IDS, "float32", "the scale is 1 / D")
    arrays["logits"] = np.roll(arrays["logits"], 1, -1)
    report = check(reference_of(IDS), {"logits": arrays["logits"]}, MODEL)
    assert report.mistake is None and not report.is_rounding


def test_a_row_that_rounds_as_a_whole_is_no_mistake() -> None:
    """As in layer norm with sums in float32: another scale of a row looks like another epsilon."""
    model = small_model("GPT-2")
    for seed in range(3):
        ids = random_ids(7, seed, model.config.vocab_size)
        arrays = run(model, ids, "float32")
        scales = 1 + np.random.default_rng(seed).normal(0, 1e-7, (len(arrays), 7, 1))
        for name, scale in zip(arrays, scales, strict=True):
            if "ln_" in name:
                arrays[name] = (arrays[name] * scale).astype(np.float32)
        report = check(reference_of(ids), arrays, model)
        assert report.is_rounding, str(report)


@pytest.mark.parametrize(
    ("point", "n"), [("embed", 4), ("ln_1", 48), ("mlp.out", 192), ("mlp.act", 4), ("resid", 4)]
)
def test_the_least_error_that_is_no_rounding(point: str, n: int) -> None:
    """Thrice that of adding n numbers one by one, or of two roundings of a number."""
    name = point if point == "embed" else f"blocks.1.{point}"
    arrays = run(MODEL, IDS, "float32")
    x = arrays[name].astype(np.float64)
    noise = np.random.default_rng(0).standard_normal(x.shape) * np.sqrt(np.mean(x * x))
    for factor, is_rounding in ((0.5, True), (3, False)):
        arrays[name] = (x + factor * np.sqrt(n) * 2.0**-23 * noise).astype(np.float32)
        report = check(reference_of(IDS), arrays, MODEL)
        [result] = [p for p in report.points if p.point == name]
        assert result.is_rounding == is_rounding, str(report)


def test_sums_in_a_plain_loop_are_rounding() -> None:
    """As in C: products are added one after the other, and the bias comes first."""
    model = random_model(vocab_size=50, n_embd=768, n_head=12, n_layer=1)
    ids = random_ids(5, 1, 50)
    arrays = run(model, ids, "float32")
    for name, given, layer in (
        ("blocks.0.mlp.pre", "blocks.0.ln_2", "h.0.mlp.c_fc"),
        ("blocks.0.mlp.out", "blocks.0.mlp.act", "h.0.mlp.c_proj"),
    ):
        weight = model.weights[f"{layer}.weight"]
        y = np.repeat(model.weights[f"{layer}.bias"][None], len(ids), 0)
        for i, row in enumerate(weight):
            y += arrays[given][:, i : i + 1] * row
        report = check(reference_of(ids), {given: arrays[given], name: y}, model)
        assert report.is_rounding, str(report)


def test_as_many_tokens_as_heads() -> None:
    """Queries (T, C) are not ambiguous; of three axes, heads are the first."""
    model = small_model("GPT-2")
    ids = random_ids(4, 3, model.config.vocab_size)
    arrays = run(model, ids, "float32")
    query = arrays["blocks.0.attn.q"]
    for given in (query, query.swapaxes(0, 1).reshape(4, -1)):
        assert check(reference_of(ids), {**arrays, "blocks.0.attn.q": given}, model).is_rounding


def add(array: Array, where: object, value: object) -> Array:
    changed = array.copy()
    changed[where] += value
    return changed


@pytest.mark.parametrize("given", [["logits"], ["hidden_states"]])
def test_subsets_under_other_names(given: list[str]) -> None:
    """A mistake is found from the logits alone, too."""
    for mistake in (None, "the scale 1 / √D is missing", "GELU as x · sigmoid(1.702 x)"):
        ours = run(MODEL, IDS, "float32", mistake)
        hidden = [ours["embed"], ours["blocks.0.resid"], ours["ln_f"]]
        all_arrays = {
            "logits": ours["logits"][None],
            "hidden_states": [array[None] for array in hidden],
        }
        report = check(reference_of(IDS), {name: all_arrays[name] for name in given}, MODEL)
        assert report.mistake == mistake and report.is_rounding == (mistake is None)
        assert json.loads(json.dumps(asdict(report)))["mistake"] == mistake


def test_read_tested_npz_gives_names_and_shapes(tmp_path: Path) -> None:
    logits = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "all.npz", **{"p/logits": logits, "embed": logits})
    found = read_tested(tmp_path / "all.npz")
    assert sorted(found) == ["embed", "p/logits"]
    for array in found.values():
        np.testing.assert_array_equal(array, logits)


def test_read_tested_integers_in_a_safetensors_file_are_an_error(tmp_path: Path) -> None:
    save_file({"logits": np.arange(12).reshape(3, 4)}, tmp_path / "c.safetensors")
    with pytest.raises(CheckpointError, match="logits has dtype I64, not floating-point"):
        read_tested(tmp_path / "c.safetensors")


def test_wrong_names_and_shapes() -> None:
    model = small_model("GPT-2")
    with pytest.raises(InvalidArgumentError, match="unknown array 'logit'; did you mean"):
        check(reference_of([1, 2, 3]), {"logit": np.zeros((3, 211))}, model)
    with pytest.raises(InvalidArgumentError, match=r"unknown array 'foo'; names are .* logits$"):
        check(reference_of([1, 2, 3]), {"foo": np.zeros((3, 211))}, model)
    with pytest.raises(InvalidArgumentError, match=r"logits has shape \(3, 5\)"):
        check(reference_of([1, 2, 3]), {"logits": np.zeros((3, 5))}, model)
    with pytest.raises(InvalidArgumentError, match="no arrays"):
        check(reference_of([1, 2, 3]), {}, model)


def test_check_texts_first_token_that_rounding_does_not_explain() -> None:
    model = small_model("GPT-2")
    ids = [5, 6, 7]
    greedy: list[int] = []
    for _ in range(4):
        greedy.append(int(model.forward([[*ids, *greedy]])[-1].argmax()))
    wrong = [*greedy[:2], (greedy[2] + 1) % 211, *greedy[3:]]
    assert check_texts(reference_of(ids), {"p": greedy}, model) == {"p": None}
    assert check_texts(reference_of(ids), {"p": wrong}, model) == {"p": 2}


def test_check_texts_of_two_equal_logits_either_is_right() -> None:
    model = small_model("GPT-2")
    best = int(model.forward([[5, 6, 7]])[-1].argmax())
    other = (best + 1) % 211
    wte = np.array(model.weights["wte.weight"])
    wte[other] = wte[best]
    model = GPT2(model.config, {**model.weights, "wte.weight": wte})
    for token in (best, other):
        assert check_texts(reference_of([5, 6, 7]), {"p": [token]}, model) == {"p": None}


def test_check_texts_of_a_full_context_checks_what_fits() -> None:
    weights = {**MODEL.weights, "wpe.weight": MODEL.weights["wpe.weight"][:20]}
    model, ids = GPT2(replace(MODEL.config, n_positions=20), weights), random_ids(20, 1, 211)
    best = int(model.forward([ids])[-1].argmax())
    assert check_texts(reference_of(ids), {"p": [best, 7, 7]}, model) == {"p": None}


def test_check_texts_several_differ_weights_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("GPT-2")
    prompts = {f"p{i}": [5, 6, i] for i in range(4)}
    reference = Reference("x", prompts, {})
    reads = []
    items = Mapping.items
    monkeypatch.setattr(
        type(model.weights), "items", lambda self: reads.append(1) or items(self), raising=False
    )
    check_texts(reference, {p: [2] for p in prompts}, model)
    assert len(reads) == 1


def test_check_reference_of_another_model_is_an_error() -> None:
    models = [small_model("GPT-2"), small_model("erf GELU, untied")]
    first = models[0]
    changed = {**first.weights, "h.1.attn.c_attn.bias": first.weights["h.1.attn.c_attn.bias"] + 1}
    models.append(GPT2(first.config, changed))
    ids = [3, 1, 4, 1, 5]
    arrays = {name: x.astype(np.float64) for name, x in run(first, ids, "float64").items()}
    reference = Reference("first", {"p": ids}, {"p": arrays})
    assert check(reference, arrays, first).is_rounding
    for other in models[1:]:
        with pytest.raises(InvalidArgumentError, match="of another model, 'first'"):
            check(reference, arrays, other)
        with pytest.raises(InvalidArgumentError, match="of another model, 'first'"):
            check_texts(reference, {"p": [2]}, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_check_q_and_k_of_one_of_two_heads_exchanged_is_not_interleaved(dtype: str) -> None:
    model = random_model(vocab_size=90, n_embd=32, n_head=2, n_layer=1)
    ids = random_ids(12, 3, 90)
    arrays = run(model, ids, dtype)
    q, k = (arrays[f"blocks.0.attn.{letter}"].copy() for letter in "qk")
    q[1], k[1] = k[1].copy(), q[1].copy()
    arrays |= {"blocks.0.attn.q": q, "blocks.0.attn.k": k}
    report = check(reference_of(ids), arrays, model)
    assert report.first is not None and report.first.point == "blocks.0.attn.q"
    assert report.mistake is None


@pytest.mark.parametrize(("n_tokens", "seed"), [(12, 0), (1, 4)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_check_products_in_half_precision_names_the_option(
    dtype: str, n_tokens: int, seed: int
) -> None:
    """As in transformers under autocast: the residual stream and layer norms are float32.

    The attention patterns of a lone token are exact in any dtype.
    """
    model, ids = small_model("GPT-2"), random_ids(n_tokens, seed, 211)
    weights = {
        name: round_to(w, dtype) if "ln_" not in name else w for name, w in model.weights.items()
    }
    arrays: dict[str, Array] = {}

    def hook(name: str, array: Array) -> Array:
        is_product = name.endswith((".q", ".k", ".v", ".z", ".out", ".pre", ".act", "logits"))
        arrays[name] = round_to(array.astype(np.float32), dtype) if is_product else array
        return arrays[name]

    gpt2(PlainContext(ids, model.config, hook), plain_weights(GPT2(model.config, weights)))
    names = ["embed", "blocks.1.resid", "logits"]
    names += [f"blocks.{i}.attn.pattern" for i in range(2) if n_tokens == 1]
    given = {name: arrays[name] for name in names}
    report = check(reference_of(ids), given, model)
    assert not report.is_rounding
    assert f"the errors look like rounding to {dtype};" in str(report)
    assert f"give `dtype='{dtype}'`" in str(report)
    assert check(reference_of(ids), given, model, dtype).is_rounding
