"""Reading a pass: logit lens, direct logit attribution, attention heads, nearest embeddings.

Shape letters: K residuals or attributed tokens, P positions or components, C channels, V
vocabulary, H heads, D head size, R queries, T tokens, n tokens per prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.config import LM_HEAD, WTE
from gpt2np.errors import GPT2NPError, check_argument, install_hint, is_integer
from gpt2np.generation.logits_processors import check_finite
from gpt2np.interp.trace import Trace, as_gpt2, check_trace, trace
from gpt2np.kernels.array import Array, IntArray
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2
from gpt2np.model.ops import layer_norm, softmax
from gpt2np.runtime.arguments import check_sequences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATTERNS = "blocks.*.attn.pattern"
RESIDUALS = ("embed", "blocks.*.resid")
"""The residual stream before the first block and after each block."""

_CHUNK = 128  # rows of logits at a time, to bound the memory


@np.errstate(under="ignore")
def logit_lens(model: GPT2 | LanguageModel, residual: Array) -> Array:
    """Apply ln_f and the unembedding to a residual (…, C); return logits (…, V).

    They are the predictions of a model that ends after a given block (nostalgebraist 2020). The
    last block's residual gives the logits of `GPT2.forward`, bit-identical under the conditions in
    the docstring of `forward`.
    """
    model = as_gpt2(model)
    channels = model.config.n_embd
    is_residual = isinstance(residual, np.ndarray) and residual.shape[-1:] == (channels,)
    check_argument(is_residual, "residual", residual, f"an array (…, {channels})")
    ln_f = model.weights["ln_f.weight"], model.weights["ln_f.bias"]
    x = layer_norm(residual, *ln_f, model.config.layer_norm_epsilon)
    return model.unembed(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


@dataclass(frozen=True, repr=False)
class LensTable:
    """The most likely next tokens at every residual and position."""

    points: tuple[str, ...]  # (K) names of the residuals, from the first layer to the last
    positions: IntArray  # (P)
    ids: IntArray  # (K, P, n), the most likely first
    probabilities: Array  # (K, P, n), over the whole vocabulary
    texts: Mapping[int, str] = field(default_factory=dict)  # of `ids`; empty for a GPT2

    def __repr__(self) -> str:
        """Return a table as text: the most likely token of each residual and position."""
        rows = [("residual", *map(str, self.positions))]
        for point, ids, numbers in zip(
            self.points, self.ids[..., 0].tolist(), self.probabilities[..., 0].tolist(), strict=True
        ):
            texts = (repr(self.texts[i]) if self.texts else f"id {i}" for i in ids)
            cells = (f"{text} {p:.0%}" for text, p in zip(texts, numbers, strict=True))
            rows.append((point, *cells))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def lens_table(
    model: GPT2 | LanguageModel,
    trace: Trace,
    n: int = 1,
    *,
    last: int | None = None,
) -> LensTable:
    """Use the logit lens to return the n most likely next tokens at every residual and position.

    The trace needs the points `RESIDUALS`. `last` is the number of final positions (None: all).

    Raises:
        InvalidArgumentError: the trace lacks a hook point, or n is out of range.
        CheckpointError: the logits of a prediction are infinite or NaN.
    """
    lm = model if isinstance(model, LanguageModel) else None
    model = as_gpt2(model)
    check_trace(trace)
    vocab_size = model.config.vocab_size
    is_valid = is_integer(n) and 1 <= n <= vocab_size
    check_argument(is_valid, "n", n, f"an integer from 1 to {vocab_size}")
    is_valid = last is None or (is_integer(last) and last >= 1)
    check_argument(is_valid, "last", last, "an integer, at least 1, or None for all")
    names = trace.require(RESIDUALS)
    first = 0 if last is None else max(0, len(trace.ids) - last)
    positions = np.arange(first, len(trace.ids))
    residuals = np.concatenate([trace[name][positions] for name in names])  # (K·P, C)
    ids = np.empty((len(residuals), n), np.int64)
    probabilities = np.empty(ids.shape, residuals.dtype)
    for start in range(0, len(residuals), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        logits = logit_lens(model, residuals[chunk])
        check_finite(logits, model)
        p = softmax(logits)
        ids[chunk] = top_k(p, n)
        probabilities[chunk] = np.take_along_axis(p, ids[chunk], -1)
    shape = len(names), len(positions), n
    known = np.unique(ids).tolist() if lm else []
    texts = dict(zip(known, lm.tokenizer.token_texts(known), strict=True)) if lm else {}
    return LensTable(
        tuple(names), positions, ids.reshape(shape), probabilities.reshape(shape), texts
    )


def top_k(scores: Array, k: int) -> IntArray:
    """Return the indices of the k highest scores (…, V), highest first; ties: lowest first."""
    threshold = np.partition(scores, -k, axis=-1)[..., -k, None]
    above, equal = scores > threshold, scores == threshold
    ties = k - above.sum(-1, keepdims=True)
    chosen = above | (equal & (equal.cumsum(-1) <= ties))
    indices = chosen.nonzero()[-1].reshape(*scores.shape[:-1], k)
    order = np.argsort(-np.take_along_axis(scores, indices, -1), axis=-1, kind="stable")
    return np.take_along_axis(indices, order, -1)


@dataclass(frozen=True)
class Attribution:
    """The contributions of the model's components to the logits of K tokens at one position.

    Attributes:
        position: index of the token at which the logits were computed, from 0.
        tokens: ids of the tokens whose logits are split, (K).
        components: P names: wte, wpe, blocks.i.attn.head.h, blocks.i.attn.c_proj.bias,
            blocks.i.mlp, blocks.i.mlp.c_proj.bias, ln_f.bias.
        values: the contribution of each component to each logit, (P, K); their sum is the logit
            unless hooks edited the pass.
        logits: the logits of the pass, (K).
    """

    position: int
    tokens: IntArray
    components: tuple[str, ...]
    values: NDArray[np.float64]
    logits: NDArray[np.float64]


def attribution(
    model: GPT2 | LanguageModel, trace: Trace, tokens: int | Sequence[int], position: int = -1
) -> Attribution:
    """Split the logits of `tokens` at a position into contributions of the model's components.

    The last residual is the sum of the embedding and of every block's outputs. With the standard
    deviation of ln_f fixed at its value in the pass, ln_f and the unembedding are linear. So a
    logit is a sum with one term per component (Elhage et al. 2021, "A Mathematical Framework for
    Transformer Circuits").

    A negative position counts from the end. To split a logit difference, subtract the two tokens'
    columns of `values`. The trace needs the hook points embed, blocks.*.attn.z, blocks.*.mlp.out,
    and resid of the last block. If the trace lacks logits, they are computed from the last resid.

    Raises:
        InvalidArgumentError: the trace lacks a hook point, or tokens or position are invalid.
    """
    model = as_gpt2(model)
    check_trace(trace)
    [ids] = check_sequences([np.atleast_1d(tokens)], model.config.vocab_size)
    n = len(trace.ids)
    is_inside = is_integer(position) and -n <= position < n
    check_argument(is_inside, "position", position, f"the index of one of {n} tokens")
    position %= n
    last = f"blocks.{model.config.n_layer - 1}.resid"
    trace.require(["embed", "blocks.*.attn.z", "blocks.*.mlp.out", last])
    residual = trace[last][position]
    logits = trace["logits"][position] if "logits" in trace else logit_lens(model, residual)
    vectors = dict(_component_vectors(model, trace, position))
    weights, head = model.weights, LM_HEAD if LM_HEAD in model.weights else WTE
    rows = weights[head][ids] if model.exact else weights.layers.lm_head[ids]  # not unpacked
    columns = rows.T.astype(np.float64)  # (C, K)
    # ln_f without its bias, with the standard deviation of the residual
    deviation = np.sqrt(residual.astype(np.float64).var() + model.config.layer_norm_epsilon)
    stacked = np.stack(list(vectors.values()))
    centered = stacked - stacked.mean(-1, keepdims=True)
    normalized = centered / deviation * model.weights["ln_f.weight"]
    bias = model.weights["ln_f.bias"].astype(np.float64) @ columns
    return Attribution(
        position,
        ids.astype(np.int64),
        (*vectors, "ln_f.bias"),
        np.concatenate([normalized @ columns, bias[None]]),
        logits[ids].astype(np.float64),
    )


def _component_vectors(model: GPT2, trace: Trace, position: int) -> Iterator[tuple[str, Array]]:
    """Yield the name and vector (C,) of each component; the vectors sum to the last residual."""
    weights = model.weights
    wpe = weights["wpe.weight"][position].astype(np.float64)
    yield "wte", trace["embed"][position] - wpe
    yield "wpe", wpe
    for i in range(model.config.n_layer):
        z = trace[f"blocks.{i}.attn.z"][:, position].astype(np.float64)  # (H, D)
        rows = weights[f"h.{i}.attn.c_proj.weight"].reshape(*z.shape, -1)  # (H, D, C)
        for head, vector in enumerate(np.einsum("hd,hdc->hc", z, rows)):
            yield f"blocks.{i}.attn.head.{head}", vector
        yield f"blocks.{i}.attn.c_proj.bias", weights[f"h.{i}.attn.c_proj.bias"]
        bias = weights[f"h.{i}.mlp.c_proj.bias"].astype(np.float64)
        yield f"blocks.{i}.mlp", trace[f"blocks.{i}.mlp.out"][position] - bias
        yield f"blocks.{i}.mlp.c_proj.bias", bias


@dataclass(frozen=True)
class AttentionSummary:
    """Statistics of the attention heads, averaged over the queries: arrays (layers, heads)."""

    entropy: Array  # of attention weights, in nats: log T if uniform, 0 on one token
    distance: Array  # distance from query to key in tokens, weighted by attention
    previous_token: Array  # weight on the previous token; 0 if there is one token only
    first_token: Array  # weight on the first token, the usual target of idle heads


def attention_summary(trace: Trace) -> AttentionSummary:
    """Summarize every attention head of a trace that has blocks.*.attn.pattern.

    A trace of `record_pass` has the last 16 queries only, which are then averaged.

    Raises:
        InvalidArgumentError: the trace lacks the patterns.
    """
    check_trace(trace)
    layers = []
    for name in trace.require(PATTERNS):
        pattern = trace[name]  # (H, R, T)
        heads, rows, tokens = pattern.shape
        logs = np.log(pattern, out=np.zeros_like(pattern), where=pattern > 0)
        distance = np.arange(tokens)[-rows:, None] - np.arange(tokens)
        previous = np.zeros((heads, 1), pattern.dtype)
        if tokens > 1:
            previous = np.diagonal(pattern, tokens - rows - 1, 1, 2)
        entropy = -(pattern * logs).sum(-1).mean(-1)
        mean_distance = (pattern * distance).sum(-1).mean(-1).astype(pattern.dtype)
        layers.append((entropy, mean_distance, previous.mean(-1), pattern[..., 0].mean(-1)))
    return AttentionSummary(*(np.stack(means) for means in zip(*layers, strict=True)))


def induction_scores(
    model: GPT2 | LanguageModel, ids: Sequence[int] | None = None, *, seed: int = 0
) -> Array:
    """Score each head for induction: attention to the token after an earlier copy of the query.

    The model reads the ids twice in a row. The score averages over the queries of the second copy
    (Olsson et al. 2022, "In-context Learning and Induction Heads"). By default, 50 random ids are
    drawn with `seed`, or fewer if the context is below 100 tokens. Returns (layers, heads).

    Raises:
        InvalidArgumentError: there are fewer than two ids, as with a context below four tokens.
        ContextLengthError: the repeated ids exceed the model's context.
    """
    model = as_gpt2(model)
    if ids is None:
        rng = np.random.default_rng(seed)
        n = min(50, model.config.n_positions // 2)
        ids = rng.integers(0, model.config.vocab_size, n).tolist()
    check_argument(len(ids) >= 2, "ids", ids, "at least two ids, which are then repeated")
    repeated = trace(model, [*ids, *ids], PATTERNS)
    # The token at n + j first occurred at j. The token at j + 1 is n - 1 tokens back.
    following = [np.diagonal(x, 1 - len(ids), 1, 2)[:, 1:] for x in repeated.values()]
    return np.stack([weights.mean(-1) for weights in following])


def nearest_tokens(embedding: Array, ids: Sequence[int], count: int) -> tuple[IntArray, Array]:
    """Return the ids of the other tokens most similar to each of `ids`, and the cosines.

    The most similar token comes first. `embedding` is (V, C). Returns two arrays (N, count).
    """
    lengths = np.sqrt(np.einsum("vc,vc->v", embedding, embedding))  # (V,)
    lengths = np.maximum(lengths, np.finfo(embedding.dtype).tiny)
    cosines = (embedding[ids] @ embedding.T) / lengths[ids][:, None] / lengths  # (N, V)
    cosines[np.arange(len(ids)), ids] = -2
    count = min(count, len(embedding) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return nearest, np.take_along_axis(cosines, nearest, 1)


def plot_attention(lm: LanguageModel, trace: Trace, layer: int) -> Figure:
    """Draw the attention patterns of a layer: a picture for each head, queries down, keys across.

    White is weight 0, and the darkest blue is weight 1, as the scale at the right shows. If the
    trace has only the last queries (`record_pass`), only these are drawn.
    `figure.savefig("heads.png")` writes the result; Jupyter shows it.

    Raises:
        GPT2NPError: matplotlib is not installed.
        InvalidArgumentError: `layer` does not exist, or the trace lacks the pattern.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise GPT2NPError(f"plots need matplotlib; {install_hint('plots')}") from error
    check_trace(trace)
    check_argument(is_integer(layer), "layer", layer, "the index of a block")
    [name] = trace.require(f"blocks.{layer}.attn.pattern")
    tokens = [text.replace("$", r"\$") for text in lm.tokenizer.token_texts(trace.ids)]
    size = max(2.5, 0.28 * len(tokens))
    labels = 0.1 * max(map(len, tokens))  # the longest, in inches
    n_heads, n_queries = trace[name].shape[:2]
    figsize = (n_heads * size + labels + 1.2, size + labels + 0.7)
    figure = pyplot.figure(figsize=figsize, layout="constrained")
    pyplot.close(figure)  # it is returned; a notebook would show it twice
    axes = figure.subplots(1, n_heads, squeeze=False, sharey=True)[0]
    for head, ax in enumerate(axes):
        image = ax.imshow(trace[name][head], cmap="Blues", vmin=0, vmax=1)
        ax.set_title(f"head {layer}.{head}")
        ax.set_xticks(range(len(tokens)), tokens, rotation=90)
        ax.set_yticks(range(n_queries), tokens[-n_queries:])
        ax.set_xlabel("key: attended token")
    axes[0].set_ylabel("query: token that attends")
    figure.colorbar(image, ax=list(axes), label="attention weight")
    return figure
