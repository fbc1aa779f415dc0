"""The description of a pass: the JSON object that the front end in `gpt2np.view` draws.

The server sends descriptions, and the explain page and notebooks embed them. The documentation's
page "The description of a pass" lists the fields.

Shape letters: L layers, H heads, T tokens, R tokens with a line of their own, C channels, F MLP
width, V vocabulary, n neurons.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.display import frame
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.logits_processors import check_finite
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sampling import RandomGenerator, log_softmax, next_id, next_probabilities
from gpt2np.interp.analysis import RESIDUALS, logit_lens, nearest_tokens, top_k
from gpt2np.interp.trace import Trace, trace
from gpt2np.kernels.array import Array, IntArray
from gpt2np.language_model import LanguageModel
from gpt2np.model.hook_points import select_hook_points
from gpt2np.model.ops import softmax
from gpt2np.runtime.context import Hook
from gpt2np.tokenizer.display import escape_spelling
from gpt2np.tokenizer.vocabulary import token_bytes
from gpt2np.view import machine_page

FORMAT, VERSION = "gpt2np.pass", 1

PARTS = ("lens", "attention", "neurons", "lines")
"""The parts of a description that can be left out; "guesses", the lens of every line, is extra."""

DESCRIBED_POINTS = (
    *RESIDUALS,
    "blocks.*.attn.out",
    "blocks.*.mlp.out",
    "blocks.*.attn.pattern",
    "blocks.*.mlp.act",
)
"""The hook points that `describe_pass` needs."""

MAX_LINES = 16
"""Tokens with a line of their own, unless asked for more: the last ones of the text."""

_SHAPE = ("n_layer", "n_head", "n_embd", "n_inner", "vocab_size")
_LARGE = (".attn.pattern", ".mlp.act")
_N_NEURONS = 5  # of each block
_N_PROMOTED = 5  # tokens that a neuron makes more likely
_N_NEAREST = 12  # tokens with similar embeddings
_MAX_PIECE = 256  # bytes of a token whose merges are listed
_MAX_FLOAT16 = float(np.finfo(np.float16).max)

Json = dict[str, Any]


def record_pass(lm: LanguageModel, ids: Sequence[int], interventions: Sequence[Hook] = ()) -> Trace:
    """Record what `describe_pass` needs of a pass over `ids`.

    Patterns and activations of the MLP can take gigabytes, so the trace keeps only the rows of the
    last R tokens: `blocks.i.attn.pattern` is (H, R, T), and `blocks.i.mlp.act` is (R, F).
    """
    last_rows: dict[str, Array] = {}

    def keep_last_rows(name: str, array: Array) -> Array:
        if name.endswith(_LARGE):
            last_rows[name] = array[..., -MAX_LINES:, :].copy()
        return array

    points = [name for name in DESCRIBED_POINTS if not name.endswith(_LARGE)]
    traced = trace(lm, ids, points, interventions=[*interventions, keep_last_rows])
    return Trace(traced.ids, traced.config, {**traced.arrays, **last_rows})


def model_label(lm: LanguageModel) -> str:
    """Return a model's name without its folder, because other users may read a page."""
    path = Path(lm.name)
    return path.name if path.is_absolute() else lm.name


def describe_pass(
    lm: LanguageModel,
    traced: Trace,
    *,
    sampling: GenerationOptions | None = None,
    tokens: Sequence[int] = (),
    n: int = 10,
    include: Collection[str] = PARTS,
    n_lines: int = MAX_LINES,
    seed: int | None = None,
    n_drawn: int = 0,
) -> Json:
    """Describe how a model predicts the token after a text.

    `traced` has the hook points DESCRIBED_POINTS, as `record_pass` returns them. `sampling` gives
    the probabilities after the filters (default: the model's own). Besides the two most likely
    tokens, `tokens` are followed through the blocks. `n` tokens are listed. `include` selects from
    PARTS and "guesses". `lines` has the last `n_lines` tokens; for more than MAX_LINES, `traced`
    must contain the arrays of all tokens. With a `seed`, the description has the random number that
    selects token number `n_drawn`.

    Raises:
        InvalidArgumentError: the trace lacks a hook point, or a number is out of range.
        CheckpointError: some logits are infinite or NaN.
    """
    config = lm.model.config
    if max(tokens, default=0) >= config.vocab_size or n > config.vocab_size:
        raise InvalidArgumentError(f"tokens and n must be below {config.vocab_size}")
    names = traced.require(RESIDUALS)
    with np.errstate(all="ignore"):  # check_finite raises an error instead
        logits = logit_lens(lm, np.stack([traced[name][-1] for name in names]))  # (L+1, V)
    check_finite(logits, lm.model)
    sampling = sampling or GenerationOptions(temperature=1.0, top_k=0)
    draw = {} if seed is None else {"draw": _draw(logits[-1], sampling, seed, n_drawn)}
    likeliest = top_k(logits[-1], min(2, config.vocab_size)).tolist()
    followed = list(dict.fromkeys([*tokens, *likeliest, *(each["id"] for each in draw.values())]))
    result = {
        **_head(lm, traced),
        "tokens": followed,
        "next": _next_tokens(logits[-1], followed, sampling, n),
        **draw,
    }
    parts: dict[str, Callable[[], Any]] = {
        "lens": lambda: _lens(names, softmax(logits), followed, n),
        "attention": lambda: array_json(_of_last_token(traced, "attn.pattern")),
        "neurons": lambda: describe_neurons(lm, _of_last_token(traced, "mlp.act"), _N_NEURONS),
        "lines": lambda: _lines(lm, traced, n_lines),
        "guesses": lambda: _guesses(lm, [traced[x][-n_lines:] for x in names], min(n, 9)),
    }
    result |= {name: describe() for name, describe in parts.items() if name in include}
    result["texts"] = describe_texts(lm, _named_ids(result))
    return result


def _head(lm: LanguageModel, traced: Trace) -> Json:
    """Return the fields that describe the model and the text."""
    config = lm.model.config
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": model_label(lm),
        "shape": {name: getattr(config, name) for name in _SHAPE},
        "scales": [config.attention_scale(i) for i in range(config.n_layer)],
        "ids": traced.ids.tolist(),
    }


def _of_last_token(traced: Trace, point: str) -> Array:
    """Return the last row of an array in each block: (L, H, T) or (L, F)."""
    layers = range(traced.config.n_layer)
    return np.stack([traced[f"blocks.{i}.{point}"][..., -1, :] for i in layers])


def array_json(array: Array, dtype: DTypeLike | None = None) -> Json:
    """Return an array as a JSON object: dtype, shape, and little-endian bytes in base64.

    With `dtype` float16, an array with numbers beyond its range becomes float32.
    """
    if dtype == np.float16 and np.abs(array).max(initial=0) > _MAX_FLOAT16:
        dtype = np.float32
    with np.errstate(under="ignore"):  # the smallest numbers become 0
        array = array.astype(dtype or array.dtype)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    encoded = base64.b64encode(data).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": encoded}


def active_neurons(activation: Array, output: Array, count: int) -> tuple[IntArray, Array]:
    """Return the neurons that add the longest vectors to the residual stream, and the lengths.

    A neuron adds its activation times its row of `output`, the output weights of the MLP.
    `activation` is (…, F), `output` (F, C). Returns two arrays (…, count).
    """
    lengths = np.abs(activation) * np.sqrt(np.einsum("fc,fc->f", output, output))
    neurons = np.argsort(-lengths, axis=-1, kind="stable")[..., :count]
    return neurons, np.take_along_axis(lengths, neurons, -1)


def _draw(logits: Array, sampling: GenerationOptions, seed: int, index: int) -> Json:
    """Return random number `index` of a sequence with `seed`, and the token that it selects."""
    number = RandomGenerator(seed).number(index)
    drawn = next_id(logits, sampling, lambda: number)
    return {"seed": seed, "index": index, "number": number, "id": drawn}


def _next_tokens(
    logits: Array, followed: Sequence[int], sampling: GenerationOptions, n: int
) -> list[Json]:
    """Return the likely next tokens with their probabilities before and after the filters.

    A draw adds up the probabilities in the order of the ids; `from` is the sum before the token,
    and `start` the sum of the probabilities before the filters.
    """
    logprobs, sampled = log_softmax(logits), next_probabilities(logits, sampling)
    before = np.cumsum(sampled) - sampled
    starts = np.cumsum(np.exp(logprobs)) - np.exp(logprobs)
    listed = dict.fromkeys([*top_k(logits, n).tolist(), *followed])
    return [
        {
            "id": i,
            "logprob": float(logprobs[i]),
            "sampled": float(sampled[i]),
            "from": float(before[i]),
            "start": float(starts[i]),
        }
        for i in listed
    ]


def _lens(
    names: Sequence[str], probabilities: Array, followed: Sequence[int], n: int
) -> list[Json]:
    """Return the logit lens at each residual: the likely tokens, and the followed tokens."""
    ids = top_k(probabilities, n)
    top = np.take_along_axis(probabilities, ids, -1)
    return [
        {
            "point": name,
            "ids": ids[k].tolist(),
            "probabilities": top[k].tolist(),
            "followed": row[followed].tolist(),
            "ranks": [int((row > row[i]).sum()) + 1 for i in followed],
        }
        for k, (name, row) in enumerate(zip(names, probabilities, strict=True))
    ]


def describe_neurons(lm: LanguageModel, activations: Array, count: int) -> list[list[Json]]:
    """Describe the most active neurons of each block, and the tokens that each makes more likely.

    `activations` is (L, F), of one token.
    """
    blocks, written = [], []
    for layer, activation in enumerate(activations):
        output = lm.model.weights[f"h.{layer}.mlp.c_proj.weight"]
        neurons, lengths = active_neurons(activation, output, count)
        written.append(output[neurons] * np.sign(activation[neurons])[:, None])
        blocks.append(zip(neurons, activation[neurons], lengths, strict=True))
    # Reading the embedding takes most of the time, so all blocks share one product.
    promoted = iter(top_k(lm.model.unembed(np.concatenate(written)), _N_PROMOTED))
    return [
        [
            {
                "neuron": int(neuron),
                "activation": float(activation),
                "length": float(length),
                "raises": next(promoted).tolist(),
            }
            for neuron, activation, length in block
        ]
        for block in blocks
    ]


def _lines(lm: LanguageModel, traced: Trace, n_lines: int) -> Json:
    """Return the vectors, patterns and neurons of the last tokens: (R, …) or (L, …, R, …)."""
    layers, weights = range(lm.model.config.n_layer), lm.model.weights
    first = max(0, len(traced.ids) - n_lines)

    def stack(point: str) -> Array:
        return np.stack([traced[f"blocks.{i}.{point}"][first:] for i in layers])

    wpe = weights["wpe.weight"][first : len(traced.ids)]
    patterns = [traced[f"blocks.{i}.attn.pattern"][:, -n_lines:, first:] for i in layers]
    activations = [traced[f"blocks.{i}.mlp.act"][-n_lines:] for i in layers]
    neurons = [
        active_neurons(activations[i], weights[f"h.{i}.mlp.c_proj.weight"], _N_NEURONS)[0]
        for i in layers
    ]
    active = [np.take_along_axis(a, i, -1) for a, i in zip(activations, neurons, strict=True)]
    return {
        "first": first,
        "wte": array_json(traced["embed"][first:] - wpe, np.float16),
        "wpe": array_json(wpe, np.float16),
        "attention": array_json(stack("attn.out"), np.float16),
        "mlp": array_json(stack("mlp.out"), np.float16),
        "resid": array_json(stack("resid"), np.float16),
        "pattern": array_json(np.stack(patterns), np.float32),
        "neurons": array_json(np.stack(neurons), np.int32),
        "activations": array_json(np.stack(active), np.float32),
    }


def _guesses(lm: LanguageModel, residuals: Sequence[Array], n: int) -> Json:
    """Return the likely tokens of the logit lens at every line.

    `residuals` are (R, C), one for each of the L + 1 places.
    """
    ids, likely = [], []
    for residual in residuals:
        probabilities = softmax(logit_lens(lm, residual))  # (R, V)
        ids.append(top_k(probabilities, n))
        likely.append(np.take_along_axis(probabilities, ids[-1], -1))
    return {
        "ids": array_json(np.stack(ids), np.int32),
        "probabilities": array_json(np.stack(likely), np.float32),
    }


def _named_ids(described: Json) -> set[int]:
    """Return the ids of all tokens that a description names."""
    ids = {*described["ids"], *described["tokens"], *(row["id"] for row in described["next"])}
    ids |= {i for point in described.get("lens", []) for i in point["ids"]}
    ids |= {i for block in described.get("neurons", []) for each in block for i in each["raises"]}
    if "guesses" in described:
        ids |= set(np.frombuffer(base64.b64decode(described["guesses"]["ids"]["base64"]), "<i4"))
    return {int(i) for i in ids}


def describe_texts(lm: LanguageModel, ids: Iterable[int]) -> dict[str, str]:
    """Return the bytes of tokens in base64, by id."""
    known = sorted(set(ids))
    texts = token_bytes(known, lm.tokenizer.vocabulary.token_bytes)
    return {
        str(i): base64.b64encode(text).decode("ascii") for i, text in zip(known, texts, strict=True)
    }


def describe_token(lm: LanguageModel, token_id: int) -> Json:
    """Describe a token: its embedding, the nearest embeddings, and the merges of its bytes.

    `steps` is empty for a token that BPE does not build, such as a special token, and for bytes
    that are no UTF-8.
    """
    embedding = lm.model.weights["wte.weight"]
    ids, cosines = nearest_tokens(embedding, [token_id], _N_NEAREST)
    nearest = [{"id": int(i), "cosine": float(x)} for i, x in zip(ids[0], cosines[0], strict=True)]
    return {
        "id": token_id,
        "embedding": array_json(embedding[token_id], np.float16),
        "nearest": nearest,
        "steps": _merges(lm, token_id),
        "texts": describe_texts(lm, [token_id, *ids[0].tolist()]),
    }


def _merges(lm: LanguageModel, token_id: int) -> list[Json]:
    """Return the steps of BPE from a token's characters or bytes to the token."""
    vocabulary = lm.tokenizer.vocabulary
    [data] = token_bytes([token_id], vocabulary.token_bytes)
    try:
        steps = lm.tokenizer.merge_steps(data[:_MAX_PIECE].decode("utf-8"))
    except ValueError:  # a part of a character, or a character that the vocabulary lacks
        return []
    return [
        {
            "tokens": [escape_spelling(token, vocabulary) for token in step.tokens],
            "ranks": list(step.ranks),
            "chosen": step.chosen,
        }
        for step in steps
        if len(steps[-1].tokens) == 1
    ]


def _picture(traced: Trace) -> str | None:
    """Return the picture of a pass for notebooks, or None if the trace lacks a part of it."""
    names = select_hook_points(DESCRIBED_POINTS, traced.config.n_layer)
    if not traced.lm or not all(name in traced.arrays for name in names):
        return None
    page = machine_page(describe_pass(traced.lm, traced), repr(traced).strip("<>"))
    return frame(page, height=700)


Trace.draw = _picture
