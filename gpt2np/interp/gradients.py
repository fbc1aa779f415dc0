"""Gradients inside the model: which inputs, heads and neurons a prediction depends on.

Gradient × input: Shrikumar et al. 2016. Integrated gradients: Sundararajan et al. 2017. Attribution
patching: Nanda 2023; Syed et al. 2023. Shape letters as in `gpt2np.model.hook_points`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpt2np.display import shaded_tokens
from gpt2np.errors import InvalidArgumentError, check_argument, is_integer
from gpt2np.interp.interventions import chain, patch_from, replace
from gpt2np.interp.trace import Trace, as_gpt2, check_trace, prompt_ids, trace
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.model import GPT2
from gpt2np.model.backward import gpt2_backward
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.hook_points import get_hook_point, select_hook_points
from gpt2np.model.ops import softmax
from gpt2np.model.plain import PlainLinear, plain_weights
from gpt2np.model.tape import Tape
from gpt2np.model.weights import ModelWeights
from gpt2np.runtime.context import Hook, as_chain


@dataclass(frozen=True)
class Target:
    """A number that depends on the logits at one position.

    Attributes:
        token: id of the token.
        minus: id of a token whose logit or log probability is subtracted, if any.
        kind: "logit" or "logprob".
        position: index of the token before `token`; a negative index counts from the end.
    """

    token: int
    minus: int | None = None
    kind: Literal["logit", "logprob"] = "logprob"
    position: int = -1

    def value_and_gradient(self, logits: Array) -> tuple[float, Array]:
        """Return the number and the gradient of the logits (T, V).

        Raises:
            InvalidArgumentError: a token, the kind or the position is invalid.
        """
        n, vocab_size = logits.shape
        for token in (self.token, self.minus if self.minus is not None else self.token):
            is_id = is_integer(token) and 0 <= token < vocab_size
            advice = f", as in lm.tokenizer.encode({token!r})[0]" if isinstance(token, str) else ""
            check_argument(is_id, "token", token, f"a token id below {vocab_size}{advice}")
        check_argument(self.kind in ("logit", "logprob"), "kind", self.kind, "'logit' or 'logprob'")
        is_inside = is_integer(self.position) and -n <= self.position < n
        check_argument(is_inside, "position", self.position, f"the index of one of {n} tokens")
        d = np.zeros_like(logits)
        row, value = d[self.position], float(logits[self.position, self.token])
        row[self.token] += 1
        if self.minus is not None:  # the normalizers of two log probabilities cancel
            value -= float(logits[self.position, self.minus])
            row[self.minus] -= 1
        elif self.kind == "logprob":
            p = softmax(logits[self.position])
            value += float(np.log(p[self.token]) - logits[self.position, self.token])
            row -= p
        return value, d


def _check_target(target: Target) -> None:
    """Raise InvalidArgumentError if a target is, for example, a text or a token id."""
    expected = "a Target, as in Target(lm.tokenizer.encode(' he')[0])"
    check_argument(isinstance(target, Target), "target", target, expected)


def gradients(
    model: GPT2 | LanguageModel,
    prompt: Prompt | NDArray[np.integer[Any]],
    target: Target,
    points: str | Sequence[str] = "*",
    *,
    interventions: Hook | Sequence[Hook] = (),
) -> Trace:
    """Return the gradient of a target at hook points, as a trace with the activations' shapes.

    `interventions` are as in `trace`; gradients pass through them. At an edited hook point, the
    result is the gradient of the edited array.

    Raises:
        InvalidArgumentError: an argument is invalid, or an edit has no gradient.
        ContextLengthError: the prompt has more tokens than the model's context.
    """
    gpt2_model = as_gpt2(model)
    ids = prompt_ids(model, prompt)
    names = select_hook_points(points, gpt2_model.config.n_layer)
    probe, w = GradientProbe(), plain_weights(gpt2_model)
    _run(gpt2_model, w, ids, target, chain(as_chain(interventions), probe))
    arrays = {name: probe.found[name] for name in names}
    return Trace(np.array(ids, np.int64), gpt2_model.config, arrays)


@dataclass(frozen=True)
class GradientProbe:
    """A hook that keeps the gradients at all hook points, in the shapes of the activations."""

    found: dict[str, Array] = field(default_factory=dict)

    def __call__(self, name: str, array: Array) -> Array:
        """Return the array."""
        return array

    def gradient(self, name: str, d: Array) -> Array:
        """Keep the gradient."""
        self.found[name] = d.copy()
        return d


@np.errstate(under="ignore")
def _run(
    model: GPT2, w: ModelWeights[PlainLinear], ids: Sequence[int], target: Target, hook: Hook
) -> float:
    """Run the forward and the backward pass with a hook. Returns the target's value."""
    _check_target(target)
    with single_threaded_blas():
        context = Tape(model.config, [ids], hook=hook)
        value, d_logits = target.value_and_gradient(gpt2(context, w))
        gpt2_backward(context, w, d_logits)
    return value


@dataclass(frozen=True)
class Saliency:
    """How much each token of a prompt contributes to a target.

    Attributes:
        ids: ids of the tokens, (T,).
        tokens: the tokens as texts.
        values: the contributions, (T,).
        value: the target's value.
        baseline: the target's value for the baseline of integrated gradients, else None. The
            contributions sum to `value` - `baseline` up to the error of the integral.
    """

    ids: IntArray
    tokens: tuple[str, ...]
    values: NDArray[np.float64]
    value: float
    baseline: float | None = None

    def _repr_html_(self) -> str:
        """Return the prompt for notebooks, shaded green for positive and red for negative."""
        return shaded_tokens(self.tokens, self.values.tolist())


def saliency(
    lm: LanguageModel,
    prompt: Prompt,
    target: Target,
    method: Literal["gradient_x_input", "integrated_gradients"] = "integrated_gradients",
    *,
    steps: int = 32,
    interventions: Hook | Sequence[Hook] = (),
) -> Saliency:
    """Attribute a target to the tokens of the prompt.

    "gradient_x_input" multiplies the embedding by its gradient. "integrated_gradients" averages the
    gradient over `steps` points between a baseline and the embeddings of the prompt. At every
    position, the baseline is the mean of all token embeddings.

    Raises the errors of `gradients`.
    """
    check_argument(is_integer(steps) and steps >= 1, "steps", steps, "at least 1")
    methods = ("gradient_x_input", "integrated_gradients")
    check_argument(method in methods, "method", method, " or ".join(map(repr, methods)))
    ids, w, hook = prompt_ids(lm, prompt), plain_weights(lm.model), as_chain(interventions)
    wte: Any = w.wte
    positions = w.wpe[: len(ids)]
    embedding, start = wte[np.array(ids)] + positions, np.zeros_like(positions)
    is_integrated = method == "integrated_gradients"
    if is_integrated:
        start = wte.mean(0) + positions

    def gradient_at(x: Array) -> tuple[float, Array]:
        probe = GradientProbe()
        hooks = chain(replace("embed", x), probe, hook)
        return _run(lm.model, w, ids, target, hooks), probe.found["embed"]

    value, d = gradient_at(embedding)
    baseline = None
    if is_integrated:
        baseline, _ = gradient_at(start)
        parts = ((i + 0.5) / steps for i in range(steps))  # midpoints
        d = np.mean([gradient_at(start + part * (embedding - start))[1] for part in parts], 0)
    values = ((embedding - start) * d).sum(-1, dtype=np.float64)
    tokens = tuple(lm.tokenizer.decode([token_id]) for token_id in ids)
    return Saliency(np.array(ids, np.int64), tokens, values, value, baseline)


def attribution_patching(
    model: GPT2 | LanguageModel,
    prompt: Prompt | NDArray[np.integer[Any]],
    source: Trace,
    target: Target,
    points: str | Sequence[str] = ("blocks.*.attn.z", "blocks.*.mlp.act", "blocks.*.resid"),
) -> dict[str, Array]:
    """Estimate how patching each part of `source` into the prompt's pass changes the target.

    One backward pass estimates all parts: the gradient times the difference of the activations.
    `source` is the trace of another prompt with the same number of tokens. Returns the estimates by
    hook point: (H, T) for arrays with heads, (T, F) for neurons, (T,) for other arrays.

    Raises:
        InvalidArgumentError: the prompts differ in length, or the source lacks a hook point.
    """
    d, before = gradients(model, prompt, target, points), trace(model, prompt, points)
    _check_source(source, prompt_ids(model, prompt))
    result: dict[str, Array] = {}
    for name in source.require(points):
        product = d[name] * (source[name] - before[name])
        result[name] = product if get_hook_point(name).shape == "T F" else product.sum(-1)
    return result


def activation_patching(
    model: GPT2 | LanguageModel,
    prompt: Prompt | NDArray[np.integer[Any]],
    source: Trace,
    target: Target,
    point: str,
) -> Array:
    """Measure what `attribution_patching` estimates, at one hook point, with one pass per part.

    Returns (H, T) for arrays with heads, and (T,) for other arrays, whose neurons are patched
    together.

    Raises the errors of `attribution_patching`.
    """
    _check_target(target)
    ids = prompt_ids(model, prompt)
    _check_source(source, ids)
    names = source.require(point)
    check_argument(len(names) == 1, "point", point, "the name of one hook point")

    def value(hooks: Sequence[Hook] = ()) -> float:
        logits = trace(model, prompt, "logits", interventions=hooks)["logits"]
        return target.value_and_gradient(logits)[0]

    by_head = get_hook_point(names[0]).by_head
    heads = range(source.config.n_head) if by_head else [None]
    values = [
        [value([patch_from(source, names, positions=i, heads=head)]) for i in range(len(ids))]
        for head in heads
    ]
    effects: Array = np.array(values) - value()
    return effects if by_head else effects[0]


def _check_source(source: Trace, ids: Sequence[int]) -> None:
    check_trace(source)
    if len(source.ids) != len(ids):
        raise InvalidArgumentError(
            f"the source has {len(source.ids)} tokens and the prompt {len(ids)}; choose two "
            "prompts of the same length in tokens"
        )
