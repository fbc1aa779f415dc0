"""The verdict on another engine: rounding, or a mistake, with its place and its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, check_argument, is_integer, short_repr
from gpt2np.interp.trace import as_gpt2
from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.model import GPT2
from gpt2np.model.hook_points import hook_point_names
from gpt2np.parity.mistakes import FLOAT16_TABLE, MISTAKES, Mistake, run_with_mistakes
from gpt2np.parity.reference import Reference
from gpt2np.parity.tested import by_prompt

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel

_FLOOR = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-40}
DTYPES = tuple(_FLOOR)  # the narrowest first
_WIDE_DTYPES = DTYPES[2:]

_ELEMENTWISE = ("embed", "resid_mid", "mlp.act", "resid")  # steps without sums
_MIN_ROW_SIGNIFICANCE = 6  # of a mistake within rounding errors, in standard deviations
_MAX_UNEXPLAINED_SHARE = 0.25  # of an error; other mistakes correlate with it, but explain little
_MARGIN = 12  # how much more rounding an engine may show at a point than our own pass
_OF_C_ATTN = (".attn.q", ".attn.k", ".attn.v")  # steps that one layer computes
_MAX_TOKENS = 64  # of the longest prompt on which mistakes are tried
_MAX_HALF_RATIO = 1 / 3  # of float16: bfloat16 has errors eight times as large
_MAX_REFERENCE_ERROR = 1e-6  # of the reference arrays from a float64 pass of the same model


@dataclass(frozen=True)
class PointReport:
    """The result for one array.

    Attributes:
        error: root mean square of the difference from the exact result, divided by the root mean
            square of the array. The exact result is computed from the engine's earlier arrays.
        tolerance: the largest error that rounding to the engine's dtype explains.
    """

    prompt: str
    point: str
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """The error in units of the tolerance."""
        return self.error / self.tolerance

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains the error."""
        return self.error <= self.tolerance


@dataclass(frozen=True)
class Report:
    """The verdict on the tested engine.

    Attributes:
        dtype: the engine's dtype, declared or recognized.
        points: the result for each array, in the order of the pass.
        first: the first array that rounding does not explain; None if there is none.
        mistake: the name of the mistake that explains `first`; None if no known mistake does.
        expected_difference: the name of a step that the engine, such as llama.cpp, computes
            differently on purpose. Errors and tolerances are then relative to a pass that computes
            this step in the same way.
        advice: the dtype that the engine seems to multiply in, and the option to give.
    """

    dtype: str
    points: tuple[PointReport, ...]
    first: PointReport | None = None
    mistake: str | None = None
    expected_difference: str | None = None
    advice: str | None = None

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains all differences."""
        return self.first is None

    def __str__(self) -> str:
        dtype = " with ".join(filter(None, (self.dtype, self.expected_difference)))
        if self.first is None:
            worst = max(self.points, key=lambda p: p.ratio)
            n = len(self.points)
            arrays = "1 array agrees" if n == 1 else f"{n} arrays agree"
            return (
                f"rounding: {arrays} within the rounding of {dtype}; the largest error is "
                f"{worst.error:.2g}, of at most {worst.tolerance:.2g}, at {worst.point}"
            )
        advice = f" ({self.advice})" if self.advice else ""
        return (
            f"a bug, first at {self.first.point} (prompt {self.first.prompt!r}): error "
            f"{self.first.error:.2g}; rounding in {dtype} explains at most "
            f"{self.first.tolerance:.2g}; known mistake: {self.mistake or 'none'}{advice}"
        )


@np.errstate(all="ignore")
def check(
    reference: Reference,
    tested: Mapping[str, Any],
    model: GPT2 | LanguageModel,
    dtype: str | None = None,
) -> Report:
    """Compare a tested engine's arrays with the exact pass; see `gpt2np.parity.tested`.

    Every step is computed in float64 from the engine's own earlier arrays. An array that the engine
    lacks is computed, too. `dtype` is the type in which the engine computes; by default, the
    narrowest of `DTYPES` that holds all its numbers.

    Raises:
        InvalidArgumentError: an array's name or shape is unknown, there is no array, or the
            reference arrays are of another model.
    """
    model = as_gpt2(model)
    weights = _checked_weights(reference, model)
    given = by_prompt(tested, reference.ids, model.config)
    if not given:
        raise InvalidArgumentError("the tested engine has no arrays; give at least logits")
    is_known = dtype is None or dtype in DTYPES
    check_argument(is_known, "dtype", dtype, f"one of {', '.join(DTYPES)}, or None")
    computed = dtype or _recognized_dtype([x for arrays in given.values() for x in arrays.values()])
    checks = {
        prompt: PromptCheck(weights, model.config, ids, given[prompt], computed)
        for prompt, ids in reference.ids.items()
        if prompt in given
    }
    report = _verdict(checks)
    are_wrong = [not p.is_rounding for p in report.points if p.error]  # a lone token's pattern is 1
    is_float32 = dtype is None and computed in _WIDE_DTYPES
    if is_float32 and not report.mistake and 2 * sum(are_wrong) > len(are_wrong):
        return replace(report, advice=_half_precision(checks))
    return report


def _half_precision(checks: Mapping[str, PromptCheck]) -> str | None:
    """Return the advice to an engine that multiplies in half precision, as under autocast.

    Only some of its arrays are rounded, so the numbers do not tell the dtype.
    """
    for dtype, limit in (("float16", _MAX_HALF_RATIO), ("bfloat16", 1)):
        points = _points({name: replace(c, dtype=dtype) for name, c in checks.items()})
        if max(point.ratio for point in points) <= limit:
            return (
                f"the errors look like rounding to {dtype}; if your engine computes in {dtype}, "
                f"give `dtype={dtype!r}`"
            )
    return None


def _checked_weights(reference: Reference, model: GPT2) -> dict[str, Array]:
    """Return the weights in float64. Raises InvalidArgumentError for another model's weights."""
    weights = {name: array.astype(np.float64) for name, array in model.weights.items()}
    if not reference.arrays:
        return weights
    prompt = min(reference.arrays, key=lambda name: len(reference.ids[name]))
    ids, ours = reference.ids[prompt], dict[str, Array]()
    if max(ids) < model.config.vocab_size and len(ids) <= model.config.n_positions:
        ours = PromptCheck(weights, model.config, ids, {}, "float64").steps({})
    for point, array in reference.arrays[prompt].items():
        is_known = point in ours and array.shape == ours[point].shape
        if not is_known or _distance(array, ours[point]) > _MAX_REFERENCE_ERROR:
            raise InvalidArgumentError(
                f"the reference arrays are of another model, {reference.model!r}",
                param="model",
            )
    return weights


def _points(checks: Mapping[str, PromptCheck]) -> tuple[PointReport, ...]:
    """Return the result for each array, in the order of the pass."""
    order = hook_point_names(next(iter(checks.values())).config.n_layer)
    reports = [report for prompt, c in checks.items() for report in c.reports(prompt)]
    return tuple(sorted(reports, key=lambda report: order.index(report.point)))


def _n_right(points: Sequence[PointReport]) -> int:
    """Return the number of arrays before the first one that rounding does not explain."""
    return len(list(takewhile(lambda point: point.is_rounding, points)))


def _verdict(checks: Mapping[str, PromptCheck]) -> Report:
    """Return the verdict on an engine, from the checks of its prompts."""
    points, expected = _points(checks), None
    dtype = next(iter(checks.values())).dtype
    if dtype in _WIDE_DTYPES and _n_right(points) < len(points):
        changed = {name: replace(c, expected=FLOAT16_TABLE) for name, c in checks.items()}
        changed_points = _points(changed)
        if _n_right(changed_points) > _n_right(points):
            checks, points, expected = changed, changed_points, FLOAT16_TABLE.name
    n_right = _n_right(points)
    first = points[n_right] if n_right < len(points) else None
    prompt = first.prompt if first else next(iter(checks))
    report = Report(dtype, points, first, expected_difference=expected)
    found = checks[prompt].explanations([p for p in points if p.prompt == prompt], first)
    if found:
        point, mistake, _ = min(found, key=lambda e: (points.index(e[0]), e[2]))
        return replace(report, first=point, mistake=mistake.name)
    return report


@dataclass(frozen=True)
class PromptCheck:
    """The arrays of a tested engine for one prompt, and the steps computed from them.

    Attributes:
        weights: the weights of the model, float64.
        given: the arrays by hook point.
        dtype: the dtype in which the engine computes.
        expected: the step that the engine computes differently on purpose.
    """

    weights: Mapping[str, Array]
    config: GPT2Config
    ids: Sequence[int]
    given: Mapping[str, Array]
    dtype: str
    expected: Mistake | None = None

    @cached_property
    def right(self) -> dict[str, Array]:
        """The steps computed from the engine's arrays."""
        return self.steps(self.given, self.expected)

    def reports(self, prompt: str) -> Iterator[PointReport]:
        """Yield the result for each array."""
        rounded = self.rounded_pass()
        ours = self.steps({name: rounded[name] for name in self.given}, self.expected)
        plain = self.steps(self.given) if self.expected else self.right
        for point, array in self.given.items():
            right = self.right[point]
            own_error = _distance(rounded[point], ours[point])
            # A number near a rounding boundary of float16 may round to its other neighbor.
            rounding_flips = _distance(plain[point], right) / 2
            least = _floor(self.dtype, point, self.config)
            tolerance = max(_MARGIN * own_error, rounding_flips, least)
            yield PointReport(prompt, point, _distance(array, right), tolerance)

    def explanations(
        self, reports: Sequence[PointReport], first: PointReport | None
    ) -> list[tuple[PointReport, Mistake, float]]:
        """Return (array, mistake, error with the mistake) for `first` and the arrays before it.

        In bfloat16 and float16, rounding can hide a mistake, so mistakes are also tried on arrays
        whose errors rounding explains.
        """
        tried = [first] if first else []
        if self.dtype not in _WIDE_DTYPES:
            tried = list(reports[: reports.index(first) + 1] if first else reports)
        if not tried or len(self.ids) > _MAX_TOKENS:
            return []
        tolerances = {report.point: report.tolerance for report in reports}
        found = []
        for mistake in MISTAKES:
            wrong = self.steps(self.given, self.expected, mistake)
            for report in tried:
                x, right, changed = (a[report.point] for a in (self.given, self.right, wrong))
                error = _distance(x, changed)
                explains = error < _MAX_UNEXPLAINED_SHARE * report.error
                if report.is_rounding:
                    explains = _is_hidden(x, right, changed)
                if explains and not self._is_contradicted(report.point, wrong, tolerances):
                    found.append((report, mistake, error))
        return found

    def _is_contradicted(
        self, point: str, wrong: Mapping[str, Array], tolerances: Mapping[str, float]
    ) -> bool:
        """Return whether q, k or v of the block lacks the effect that a mistake would have."""
        projections = (point[:-1] + letter for letter in "qkv" if point.endswith(_OF_C_ATTN))
        for name in filter(self.given.__contains__, projections):
            effect = _distance(wrong[name], self.right[name])
            rest = _distance(wrong[name], self.given[name])
            if effect > tolerances[name] and rest > _MAX_UNEXPLAINED_SHARE * effect:
                return True
        return False

    def rounded_pass(self) -> dict[str, Array]:
        """Return the arrays of our own pass in the engine's dtype and shapes."""
        wide = np.float64 if self.dtype == "float64" else np.float32
        weights = {n: round_to(w, self.dtype).astype(wide) for n, w in self.weights.items()}
        _, arrays = self._run(weights, lambda _, x: round_to(x, self.dtype), self.expected)
        return {name: array.astype(np.float64) for name, array in arrays.items()}

    def steps(self, given: Mapping[str, Array], *mistakes: Mistake | None) -> dict[str, Array]:
        """Run the pass in float64 with `given` in the place of its arrays; return the steps."""
        return self._run(self.weights, lambda name, right: given.get(name, right), *mistakes)[0]

    def _run(
        self,
        weights: Mapping[str, Array],
        choose: Callable[[str, Array], Array],
        *mistakes: Mistake | None,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run the pass with mistakes; return the steps, and the arrays that `choose` returns.

        The engine may lack the first rows of an array; then these rows are not returned.
        """
        steps: dict[str, Array] = {}
        arrays: dict[str, Array] = {}

        def hook(name: str, right: Array) -> Array:
            array = choose(name, right)
            array = array if array.shape == right.shape else right  # logits of the last token
            n_rows = len(self.given.get(name, right))
            steps[name], arrays[name] = right[-n_rows:], array[-n_rows:]
            return array

        with single_threaded_blas():  # threads lose time on small products
            run_with_mistakes(list(filter(None, mistakes)), self.ids, self.config, weights, hook)
        return steps, arrays


@np.errstate(all="ignore")
def check_texts(
    reference: Reference,
    continuations: Mapping[str, Sequence[int]],
    model: GPT2 | LanguageModel,
    dtype: str = "float32",
) -> dict[str, int | None]:
    """Check that each token of greedy continuations has the highest logit, up to rounding.

    Returns, by prompt, the index of the first new token that rounding does not explain, or None.
    Each token is compared with the exact logits after the tokens before it, as far as the context
    reaches.

    Raises:
        InvalidArgumentError: there is nothing to compare, a prompt is unknown, a continuation is
            not a list of token ids, or the reference arrays are of another model.
    """
    model = as_gpt2(model)
    weights = _checked_weights(reference, model)
    if not continuations:
        raise InvalidArgumentError(
            "the tested engine has no token ids; give those of at least one prompt"
        )
    n_vocab, found = model.config.vocab_size, dict[str, int | None]()
    for prompt, ids in continuations.items():
        if prompt not in reference.ids:
            known = ", ".join(reference.ids)
            raise InvalidArgumentError(f"no prompt {prompt!r}; the prompts are {known}")
        is_list = isinstance(ids, Sequence) and len(ids) > 0 and all(map(is_integer, ids))
        is_list = is_list and min(ids) >= 0 and max(ids) < n_vocab
        if not is_list:
            expected = f"expected a list of at least one token id below {n_vocab}"
            raise InvalidArgumentError(f"prompt {prompt!r}: {short_repr(ids)}; {expected}")
        before = [*reference.ids[prompt], *ids[:-1]][: model.config.n_positions]
        first = len(reference.ids[prompt]) - 1
        rounded, exact = (
            PromptCheck(weights, model.config, before, {}, name).rounded_pass()["logits"][first:]
            for name in (dtype, "float64")
        )
        gaps = exact.max(-1) - exact[range(len(exact)), ids[: len(exact)]]
        are_wrong = gaps > 2 * _MARGIN * np.abs(rounded - exact).max(-1)
        found[prompt] = int(are_wrong.argmax()) if are_wrong.any() else None
    return found


def _floor(dtype: str, point: str, config: GPT2Config) -> float:
    """Return the least tolerance: in float32, twice the error of adding n numbers one by one.

    This error grows as √n. BLAS adds in a more accurate order than such a loop.
    """
    step = point.split(".", 2)[-1]  # blocks.3.mlp.out → mlp.out
    if dtype != "float32" or step in _ELEMENTWISE:
        return _FLOOR[dtype]
    n = config.n_inner if step == "mlp.out" else config.n_embd
    return max(_FLOOR[dtype], 2.0**-23 * float(np.sqrt(n)))


def _rms(x: Array) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(x * x)))


def _distance(x: Array, right: Array) -> float:
    """Return the root mean square of x - right, relative to that of `right`."""
    error = float(_rms(x - right) / (_rms(right) or 1.0))
    return error if np.isfinite(error) else np.inf


def _is_hidden(x: Array, right: Array, wrong: Array) -> bool:
    """Tell whether the errors of x contain the difference of `wrong` from `right`.

    The factor of (wrong - right) in (x - right), by least squares, must be about 1, and larger than
    chance explains. Each row is one sample, because a row's errors may share a factor, as in layer
    norm.
    """
    error, effect = ((array - right).reshape(-1, x.shape[-1]) for array in (x, wrong))
    products, squares = (error * effect).sum(-1), (effect * effect).sum(-1)
    factor = products.sum() / squares.sum()
    noise = np.linalg.norm(products - factor * squares) / squares.sum()
    is_significant = len(error) > 3 and factor > _MIN_ROW_SIGNIFICANCE * noise
    return bool(abs(factor - 1) < 0.1 and is_significant)


def round_to(x: Array, dtype: str) -> Array:
    """Round to a dtype and back; bfloat16 to nearest even, as in `transformers`."""
    if dtype != "bfloat16":
        return x.astype(dtype).astype(x.dtype)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(x.dtype)


def _recognized_dtype(arrays: Sequence[Array]) -> str:
    """Return the narrowest of `DTYPES` that holds all numbers of the arrays."""

    def holds(dtype: str) -> bool:
        return all(np.array_equal(round_to(x, dtype), x, equal_nan=True) for x in arrays)

    return next(filter(holds, DTYPES))
