"""The verdict on another engine: rounding, or a mistake, with its place and its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, check_argument, is_integer
from gpt2np.interp.trace import as_gpt2
from gpt2np.kernels.array import Array
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.model import GPT2
from gpt2np.model.hook_points import hook_point_names
from gpt2np.parity.mistakes import FLOAT16_TABLE, MISTAKES, Mistake, run_with_mistakes
from gpt2np.parity.reference import Reference
from gpt2np.parity.rounding import (
    DTYPES,
    MAX_UNEXPLAINED_SHARE,
    WIDE_DTYPES,
    distance,
    floor,
    has_common_change,
    is_hidden,
    recognized_dtype,
    round_to,
)
from gpt2np.parity.tested import by_prompt

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel

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
        explained_error: the error that an engine with this mistake has at `first`.
        expected_difference: the name of a step that the engine, such as llama.cpp, computes
            differently on purpose. Errors and tolerances are then relative to a pass that computes
            this step in the same way.
        advice: the dtype that the engine seems to multiply in, and the option to give.
    """

    dtype: str
    points: tuple[PointReport, ...]
    first: PointReport | None = None
    mistake: str | None = None
    explained_error: float | None = None
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
        text = f"a bug, first at {self.first.point} (prompt {self.first.prompt!r}): error "
        text += f"{self.first.error:.2g}; rounding in {dtype} explains at most "
        text += f"{self.first.tolerance:.2g}; "
        if self.explained_error is None:
            advice = f" ({self.advice})" if self.advice else ""
            return f"{text}no known mistake explains it{advice}"
        is_all = self.explained_error <= self.first.tolerance
        rest = "" if is_all else ", and something else is wrong"
        return (
            f"{text}this mistake explains all but {self.explained_error:.2g}: {self.mistake}{rest}"
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
    weights = _as_float64(model)
    _check_model(reference, model.config, weights)
    given = by_prompt(tested, reference.ids, model.config)
    if not given:
        raise InvalidArgumentError("the tested engine has no arrays; give at least logits")
    is_known = dtype is None or dtype in DTYPES
    check_argument(is_known, "dtype", dtype, f"one of {', '.join(DTYPES)}, or None")
    computed = dtype or recognized_dtype([x for arrays in given.values() for x in arrays.values()])
    checks = {
        prompt: PromptCheck(weights, model.config, ids, given[prompt], computed)
        for prompt, ids in reference.ids.items()
        if prompt in given
    }
    report = _verdict(checks)
    are_wrong = [not p.is_rounding for p in report.points if p.error]  # a lone token's pattern is 1
    is_float32 = dtype is None and computed in WIDE_DTYPES
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
                f"it looks like rounding to {dtype}; if the engine computes in {dtype}, give "
                f"`dtype={dtype!r}`"
            )
    return None


def _as_float64(model: GPT2) -> dict[str, Array]:
    return {name: array.astype(np.float64) for name, array in model.weights.items()}


def _check_model(reference: Reference, config: GPT2Config, weights: Mapping[str, Array]) -> None:
    """Raise InvalidArgumentError if the reference arrays, if any, are of another model."""
    prompts = [prompt for prompt, arrays in reference.arrays.items() if arrays]
    if not prompts:
        return
    prompt = min(prompts, key=lambda name: len(reference.ids[name]))
    ids, recorded = reference.ids[prompt], reference.arrays[prompt]
    is_same = max(ids) < config.vocab_size and len(ids) <= config.n_positions
    if is_same:
        ours = PromptCheck(weights, config, ids, {}, "float64").steps({})
        is_same = all(
            point in ours
            and array.shape == ours[point].shape
            and distance(array, ours[point]) < _MAX_REFERENCE_ERROR
            for point, array in recorded.items()
        )
    if not is_same:
        raise InvalidArgumentError(
            f"model is another model than that of the reference arrays, {reference.model!r}",
            param="model",
        )


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
    if dtype in WIDE_DTYPES and _n_right(points) < len(points):
        changed = {name: replace(c, expected=FLOAT16_TABLE) for name, c in checks.items()}
        changed_points = _points(changed)
        if _n_right(changed_points) > _n_right(points):
            checks, points, expected = changed, changed_points, FLOAT16_TABLE.name
    n_right = _n_right(points)
    first = points[n_right] if n_right < len(points) else None
    prompt = first.prompt if first else max(checks, key=lambda name: checks[name].weight)
    report = Report(dtype, points, first, expected_difference=expected)
    found = checks[prompt].explanations([p for p in points if p.prompt == prompt], first)
    if found:
        point, mistake, error = min(found, key=lambda e: (points.index(e[0]), e[2]))
        return replace(report, first=point, mistake=mistake.name, explained_error=error)
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

    @property
    def weight(self) -> tuple[bool, int]:
        """How well the prompt shows mistakes: with all mistakes tried, and with many arrays."""
        return len(self.ids) <= _MAX_TOKENS, len(self.given)

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
            own_error = distance(rounded[point], ours[point])
            # A number near a rounding boundary of float16 may round to its other neighbor.
            rounding_flips = distance(plain[point], right) / 2
            least = floor(self.dtype, point, self.config)
            tolerance = max(_MARGIN * own_error, rounding_flips, least)
            if self.dtype not in WIDE_DTYPES and has_common_change(array, right):
                tolerance = floor("float32", point, self.config)
            yield PointReport(prompt, point, distance(array, right), tolerance)

    def explanations(
        self, reports: Sequence[PointReport], first: PointReport | None
    ) -> list[tuple[PointReport, Mistake, float]]:
        """Return (array, mistake, error with the mistake) for `first` and the arrays before it.

        In bfloat16 and float16, rounding can hide a mistake, so mistakes are also tried on arrays
        whose errors rounding explains.
        """
        tried = [first] if first else []
        if self.dtype not in WIDE_DTYPES:
            tried = list(reports[: reports.index(first) + 1] if first else reports)
        if not tried or len(self.ids) > _MAX_TOKENS:
            return []
        tolerances = {report.point: report.tolerance for report in reports}
        found = []
        for mistake in MISTAKES:
            wrong = self.steps(self.given, self.expected, mistake)
            for report in tried:
                x, right, changed = (a[report.point] for a in (self.given, self.right, wrong))
                error = distance(x, changed)
                explains = error < MAX_UNEXPLAINED_SHARE * report.error
                if report.is_rounding:
                    explains = is_hidden(x, right, changed)
                if explains and not self._is_contradicted(report.point, wrong, tolerances):
                    found.append((report, mistake, error))
        return found

    def _is_contradicted(
        self, point: str, wrong: Mapping[str, Array], tolerances: Mapping[str, float]
    ) -> bool:
        """Return whether q, k or v of the block lacks the effect that a mistake would have."""
        projections = (point[:-1] + letter for letter in "qkv" if point.endswith(_OF_C_ATTN))
        for name in filter(self.given.__contains__, projections):
            effect = distance(wrong[name], self.right[name])
            rest = distance(wrong[name], self.given[name])
            if effect > tolerances[name] and rest > MAX_UNEXPLAINED_SHARE * effect:
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


@dataclass(frozen=True)
class TextReport:
    """The verdict on a greedy continuation.

    Attributes:
        step: the first token that rounding does not explain, counted from 0; None if there is none.
        gap: by how much another token's exact logit is higher at that step.
        tolerance: the largest gap that rounding can close at that step.
    """

    step: int | None = None
    gap: float = 0.0
    tolerance: float = 0.0

    @property
    def is_rounding(self) -> bool:
        """Whether each token has the highest exact logit, up to rounding."""
        return self.step is None

    def __str__(self) -> str:
        if self.step is None:
            return "right: each token has the highest logit, up to rounding"
        return (
            f"a bug at token {self.step}: another logit is higher by {self.gap:.2g}; rounding "
            f"explains at most {self.tolerance:.2g}"
        )


@np.errstate(all="ignore")
def check_texts(
    reference: Reference,
    continuations: Mapping[str, Sequence[int]],
    model: GPT2 | LanguageModel,
    dtype: str = "float32",
) -> dict[str, TextReport]:
    """Check that greedy continuations are those of the exact pass, or differ by rounding only.

    The logits are computed from the continuations themselves, up to the end of the context.

    Raises:
        InvalidArgumentError: there is nothing to compare, a prompt is unknown, a continuation is
            not a list of token ids, or the reference arrays are of another model.
    """
    model = as_gpt2(model)
    weights = _as_float64(model)
    _check_model(reference, model.config, weights)
    if not continuations:
        raise InvalidArgumentError(
            "the tested engine has no token ids; give those of at least one prompt"
        )
    reports = {}
    for prompt, ids in continuations.items():
        if prompt not in reference.ids:
            raise InvalidArgumentError(
                f"no prompt {prompt!r}; there are {', '.join(reference.ids)}"
            )
        is_list = isinstance(ids, Sequence) and len(ids) > 0 and all(map(is_integer, ids))
        is_list = is_list and min(ids) >= 0 and max(ids) < model.config.vocab_size
        check_argument(
            is_list, prompt, ids, f"a list of at least one token id below {model.config.vocab_size}"
        )
        before = [*reference.ids[prompt], *ids[:-1]][: model.config.n_positions]
        first = len(reference.ids[prompt]) - 1
        rounded, exact = (
            PromptCheck(weights, model.config, before, {}, name).rounded_pass()["logits"][first:]
            for name in (dtype, "float64")
        )
        gaps = exact.max(-1) - exact[range(len(exact)), ids[: len(exact)]]
        tolerances = 2 * _MARGIN * np.abs(rounded - exact).max(-1)
        wrong = np.flatnonzero(gaps > tolerances).tolist()
        reports[prompt] = TextReport()
        if wrong:
            step = wrong[0]
            reports[prompt] = TextReport(step, float(gaps[step]), float(tolerances[step]))
    return reports
