"""Compare the float32 rounding errors of gpt2np's logits with those of transformers.

    python benchmarks/accuracy.py                               # 200 random checkpoints
    python benchmarks/accuracy.py --shapes small medium large xl
    python benchmarks/accuracy.py --operations                  # each operation by itself

The exact logits are those of transformers in float64. An error is the root mean square of the
distances from the exact logits. Each row shows the error of gpt2np, that of transformers (float32,
eager attention), and the ratio of the two. XL's shape needs 16 GB of memory.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from common import SHAPES
from tqdm import tqdm
from transformers.activations import ACT2FN

from gpt2np import GPT2, GPT2Config
from gpt2np.checkpoint.config import LM_HEAD, WTE, weight_shapes
from gpt2np.kernels.packed_matrix import PackedMatrix, linear, packed_size
from gpt2np.model.ops import ACTIVATIONS, causal_softmax, layer_norm

Array = np.ndarray[Any, Any]

MAX_PARAMETERS = 25e6  # of a random checkpoint
HEAD_SIZES = (1, 2, 3, 5, 8, 11, 16, 17, 24, 32, 40, 64, 65, 80, 100, 128)
WIDTHS, WEIGHT_GAINS, LOGITS = (2, 1600), (0.3, 2.5), (0.5, 50)  # ranges of logarithmic draws


@dataclass(frozen=True)
class Case:
    """A random checkpoint and the ids of its prompts.

    Attributes:
        gain: standard deviation of a matrix's weights times the root of its number of inputs.
        outliers: the factor of the few largest channels, as in trained models.
        largest_logit: the final layer norm is scaled so that this is the largest logit.
    """

    name: str
    seed: int
    config: GPT2Config
    is_tied: bool
    gain: float
    outliers: float
    largest_logit: float
    sequences: int
    tokens: int

    def weights(self) -> Mapping[str, Array]:
        """Return the weights by name, before `largest_logit` is applied."""
        shapes = weight_shapes(self.config)
        shapes |= {} if self.is_tied else {LM_HEAD: shapes[WTE]}
        rng = np.random.default_rng([self.seed, 1])
        channels = rng.choice(self.config.n_embd, -(-self.config.n_embd // 256), replace=False)
        weights = {}
        for name, shape in shapes.items():
            array = rng.standard_normal(shape, np.float32)
            if len(shape) == 2 and name != "wpe.weight":
                n_in = shape[1] if name in (WTE, LM_HEAD) else shape[0]
                array *= np.float32(self.gain / math.sqrt(n_in))
            else:
                array *= np.float32(0.2 * self.gain)
            if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
                array += 1
            if name in (WTE, "wpe.weight", "ln_f.weight") or name.endswith("c_proj.bias"):
                array[..., channels] *= np.float32(self.outliers)
            weights[name] = array
        return weights

    def ids(self) -> Array:
        """Return the token ids of the prompts (sequences, tokens)."""
        rng = np.random.default_rng([self.seed, 2])
        return rng.integers(0, self.config.vocab_size, (self.sequences, self.tokens))


@dataclass(frozen=True)
class Errors:
    """The root mean square errors of a case's logits.

    Attributes:
        ours, theirs: the errors over all logits.
        ours_usual, theirs_usual: the same without the 1 % of the tokens with the largest errors of
            either engine. A layer norm of few channels divides by almost 0 for some tokens, which
            then determine the first pair, by chance.
    """

    case: Case
    ours: float
    theirs: float
    ours_usual: float
    theirs_usual: float

    @property
    def ratio(self) -> float:
        """The error of gpt2np, relative to that of transformers."""
        return ratio(self.ours, self.theirs)


def random_case(number: int) -> Case:
    """Return one of the random checkpoints."""
    rng = np.random.default_rng([number, 0])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    width = between(*WIDTHS)
    size = int(rng.choice([size for size in HEAD_SIZES if size <= max(width, 2)]))
    heads = max(1, round(width / size))
    n_embd = max(2, min(heads * size, WIDTHS[1] // size * size))
    heads = n_embd // size if n_embd % size == 0 else 1
    n_inner = int(between(1, 4.5) * n_embd) if rng.random() < 0.5 else 4 * n_embd
    most_layers = MAX_PARAMETERS / (4 * n_embd**2 + 2 * n_embd * n_inner)
    layers = int(rng.integers(1, 1 + max(1, min(12, int(most_layers)))))
    tokens = int(rng.choice([16, 64, 200, 500]))
    config = GPT2Config(
        vocab_size=int(between(50, 2000)),
        n_positions=512,
        n_embd=n_embd,
        n_layer=layers,
        n_head=heads,
        n_inner=n_inner,
        activation_function=sorted(ACTIVATIONS)[number % len(ACTIVATIONS)],
        layer_norm_epsilon=float(rng.choice([1e-12, 1e-8, 1e-6, 1e-5, 1e-5, 1e-3, 0.1])),
        scale_attn_weights=bool(rng.random() < 0.8),
        scale_attn_by_inverse_layer_idx=bool(rng.random() < 0.3),
    )
    return Case(
        name=f"{number}",
        seed=number,
        config=config,
        is_tied=bool(rng.random() < 0.7),
        gain=between(*WEIGHT_GAINS),
        outliers=between(3, 30) if rng.random() < 0.5 else 1.0,
        largest_logit=between(*LOGITS),
        # a narrow model's error depends on few tokens, so it gets more of them
        sequences=-(-max(256, min(4096, 50_000 // n_embd)) // tokens),
        tokens=tokens,
    )


def gpt2_case(shape: str) -> Case:
    """Return a random checkpoint in the shape of one of GPT-2's four sizes."""
    n_layer, n_head, n_embd = SHAPES[shape]
    config = GPT2Config(n_layer=n_layer, n_head=n_head, n_embd=n_embd)
    return Case(shape, 0, config, True, 1.0, 10.0, 30.0, sequences=1, tokens=256)


def scaled_weights(case: Case) -> Mapping[str, Array]:
    """Return a case's weights, with ln_f scaled so that the logits have the wanted maximum."""
    weights = dict(case.weights())
    largest = np.abs(GPT2(case.config, weights).forward([case.ids()[0]])).max()
    for name in ("ln_f.weight", "ln_f.bias"):
        weights[name] = weights[name] * np.float32(case.largest_logit / largest)
    return weights


def transformers_model(case: Case, weights: Mapping[str, Array]) -> Any:
    """Return the model of transformers with the given weights."""
    config = transformers.GPT2Config(
        **{key: value for key, value in asdict(case.config).items() if key != "eos_token_ids"}
        | {"tie_word_embeddings": case.is_tied, "attn_implementation": "eager"}
        | {"bos_token_id": 0, "eos_token_id": 0}
    )
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    state = {
        name if name == LM_HEAD else f"transformer.{name}": torch.from_numpy(array)
        for name, array in weights.items()
    }
    state.setdefault(LM_HEAD, state[f"transformer.{WTE}"])
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model.train(False)


def measure(case: Case) -> Errors:
    """Compute a case's logits with gpt2np, with transformers, and with transformers in float64."""
    weights = scaled_weights(case)
    ids = case.ids()
    model = GPT2(case.config, weights)
    ours = np.stack([model.forward([row]) for row in ids])
    with torch.no_grad():
        peer = transformers_model(case, weights)
        del weights
        theirs = peer(torch.from_numpy(ids)).logits.numpy()
        exact = peer.double()(torch.from_numpy(ids)).logits.numpy()
    assert ours.dtype == theirs.dtype == np.float32
    off, theirs_off = (np.square(y - exact).mean(-1) for y in (ours, theirs))  # of each token
    largest = np.maximum(off, theirs_off)
    usual = largest <= np.quantile(largest, 0.99)
    return Errors(case, rms(off), rms(theirs_off), rms(off[usual]), rms(theirs_off[usual]))


def ratio(ours: float, theirs: float) -> float:
    """Return ours ÷ theirs; 1 if both are 0."""
    return ours / theirs if theirs else math.inf if ours else 1.0


def rms(squares: Array) -> float:
    """Return the root of the mean of squares."""
    return float(np.sqrt(squares.mean()))


def case_row(result: Errors) -> str:
    """Return a case's row of the table."""
    config = result.case.config
    return (
        f"{result.case.name:>6} {config.n_layer:6} {config.n_embd:5} {result.ours:.2e} "
        f"{result.theirs:.2e}     {result.ratio:5.2f}"
        f" {ratio(result.ours_usual, result.theirs_usual):5.2f}"
    )


CASE_HEADER = "number layers width gpt2np   transformers ratio (of 99 % of the tokens)"


def operations() -> Iterator[tuple[str, Array, Array, Array]]:
    """Yield the name of an operation, its result in gpt2np and in torch, and the exact result."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return rng.standard_normal(shape, np.float32) * np.float32(scale)

    def in_torch(function: Callable[..., torch.Tensor], *arrays: Array) -> tuple[Array, Array]:
        """Return the result in float32, and in float64."""
        tensors = [torch.from_numpy(array) for array in arrays]
        return function(*tensors).numpy(), function(*[x.double() for x in tensors]).numpy()

    for inputs, group in ((64, 64), (192, 192), *((768, 768 // i) for i in (1, 2, 3, 4, 6))):
        x, w, bias = normal(64, inputs), normal(inputs, 256), np.zeros(256, np.float32)
        buffer = np.empty(packed_size(w.shape, (group, 64)), w.dtype)
        layer = replace(PackedMatrix.in_buffer(buffer, w.shape, (group, 64)), bias=bias)
        layer.fill(w)
        name = f"product, {inputs} inputs, groups of {group}"
        yield name, linear(x, layer), *in_torch(torch.addmm, bias, x, w)
    for width in (8, 64, 768, 1600):
        for mean in (0, 10):
            x, w, bias = normal(2000, width) + np.float32(mean), 1 + normal(width), normal(width)
            norm = partial(torch.nn.functional.layer_norm, normalized_shape=(width,), eps=1e-5)
            yield (
                f"layer norm, {width} channels, mean {mean}",
                layer_norm(x, w, bias, 1e-5),
                *in_torch(lambda x, w, b, norm=norm: norm(x, weight=w, bias=b), x, w, bias),
            )
    for keys in (8, 64, 256, 1000):
        for scale in (1.0, 5.0):
            x = normal(4, 64, keys, scale=scale)
            y = causal_softmax(x.copy(), np.zeros((64, 0), bool))
            softmax = partial(torch.softmax, dim=-1)
            yield f"softmax, {keys} keys, scores of {scale}", y, *in_torch(softmax, x)
    for name, function in ACTIVATIONS.items():
        for scale in (0.1, 1.0, 5.0):
            x = normal(50_000, scale=scale)
            yield f"{name}, inputs of {scale}", function(x), *in_torch(ACT2FN[name], x)


def operation_row(name: str, ours: Array, theirs: Array, exact: Array) -> str:
    """Return an operation's row: errors in units of the exact result's last place (2⁻²⁴)."""
    unit = rms(np.square(exact)) * 2**-24
    off, theirs_off = (rms(np.square(y - exact)) for y in (ours, theirs))
    return f"{name:36} {off / unit:6.2f} {theirs_off / unit:6.2f} {ratio(off, theirs_off):6.2f}"


def main() -> None:
    """Measure the selected cases or operations, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=200, help="random checkpoints (default: 200)")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, help="GPT-2's shapes instead")
    parser.add_argument("--operations", action="store_true", help="single operations instead")
    args = parser.parse_args()
    if args.operations:
        print("operation: errors of gpt2np and torch in 2^-24 of the result, and their ratio")
        for name, ours, theirs, exact in operations():
            print(operation_row(name, ours, theirs, exact))
        return
    cases = (
        [gpt2_case(shape) for shape in args.shapes]
        if args.shapes
        else [random_case(number) for number in range(args.cases)]
    )
    print(CASE_HEADER)
    results = []
    for case in tqdm(cases, disable=None):
        results.append(measure(case))
        tqdm.write(case_row(results[-1]), file=sys.stdout)
    ratios = [result.ratio for result in results]
    usual = [ratio(result.ours_usual, result.theirs_usual) for result in results]
    for name, values in (("all tokens", ratios), ("99 % of the tokens", usual)):
        print(f"ratio, {name}: median {np.median(values):.3f}, worst {max(values):.3f}")


if __name__ == "__main__":
    main()
