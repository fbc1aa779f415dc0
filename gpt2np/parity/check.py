"""The verdict on another engine: rounding, or a mistake, with its place and its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, check_argument, is_integer
from gpt2np.interp.trace import as_gpt2
from gpt2np.kernels.array import Array, common_length
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.model import GPT2
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.hook_points import hook_point_names
from gpt2np.model.plain import PlainContext, arrange_arrays
from gpt2np.parity.mistakes import MISTAKES, Mistake, PassStep, split_name
from gpt2np.parity.reference import Reference
from gpt2np.parity.tested import by_prompt

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel

_FLOOR = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-40}
DTYPES = tuple(_FLOOR)  # the narrowest first
_WIDE = DTYPES[2:]

_MARGIN = 12  # how much more rounding an engine may show at a point than our own pass
_ELEMENTWISE = ("embed", "resid_mid", "mlp.act", "resid")  # steps without sums
_OF_C_ATTN = (".attn.q", ".attn.k", ".attn.v")  # steps that one layer computes
_MIN_ROW_SIGNIFICANCE = 6  # of a mistake within rounding errors, in standard deviations
_MAX_UNEXPLAINED_SHARE = 0.25  # of an error; other mistakes correlate with it, but explain little
_MAX_UNEXPLAINED_EXPECTED = 0.7  # numbers near a boundary of float16 may round the other way
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
        reference_error: like `error`, but relative to the reference array, so this error
            includes the rounding of all earlier steps; None if the array was not recorded.
    """

    prompt: str
    point: str
    error: float
    tolerance: float
    reference_error: float | None

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
        expected_difference: the name of a step that the engine computes differently on purpose
            (`Mistake.is_expected`). Errors and tolerances are then relative to a pass that computes
            this step in the same way.
        pattern: what the error at `first` looks like, if no known mistake explains it.
        mistakes: maps the hook point of `first`, and of each later array of the same prompt, to
            the mistake that explains the array.
    """

    dtype: str
    points: tuple[PointReport, ...]
    first: PointReport | None = None
    mistake: str | None = None
    explained_error: float | None = None
    expected_difference: str | None = None
    pattern: str | None = None
    mistakes: Mapping[str, str] = field(default_factory=dict)

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
            pattern = f" ({self.pattern})" if self.pattern else ""
            return f"{text}no known mistake explains it{pattern}"
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
    numbers = [x for arrays in given.values() for x in arrays.values()]
    checks = {
        prompt: _PromptCheck(
            weights, model.config, ids, given[prompt], dtype or _recognized(numbers)
        )
        for prompt, ids in reference.ids.items()
        if prompt in given
    }
    report = _verdict(reference, checks)
    are_wrong = [not p.is_rounding for p in report.points if p.error]  # a lone token's pattern is 1
    is_float32 = dtype is None and report.dtype in _WIDE
    if is_float32 and not report.mistake and 2 * sum(are_wrong) > len(are_wrong):
        patterns = (_half_precision(reference, checks), report.pattern)
        return replace(report, pattern="; ".join(filter(None, patterns)) or None)
    return report


def _half_precision(reference: Reference, checks: Mapping[str, _PromptCheck]) -> str:
    """Return the advice to an engine that multiplies in half precision, as under autocast.

    Only some of its arrays are rounded, so the numbers do not tell the dtype.
    """
    for dtype, limit in (("float16", _MAX_HALF_RATIO), ("bfloat16", 1)):
        points = _points(reference, {p: replace(c, dtype=dtype) for p, c in checks.items()})
        if max(point.ratio for point in points) <= limit:
            return (
                f"it looks like rounding to {dtype}; if the engine computes in {dtype}, give "
                f"`dtype={dtype!r}`"
            )
    return ""


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
        ours = _PromptCheck(weights, config, ids, {}, "float64").rounded_pass()
        is_same = all(
            point in ours
            and array.shape == ours[point].shape
            and _distance(array, ours[point]) < _MAX_REFERENCE_ERROR
            for point, array in recorded.items()
        )
    if not is_same:
        raise InvalidArgumentError(
            f"model is another model than that of the reference arrays, {reference.model!r}",
            param="model",
        )


def _points(reference: Reference, checks: Mapping[str, _PromptCheck]) -> tuple[PointReport, ...]:
    """Return the result for each array, in the order of the pass."""
    reports = [report for prompt, c in checks.items() for report in c.reports(prompt, reference)]
    order = hook_point_names(next(iter(checks.values())).config.n_layer)
    return tuple(sorted(reports, key=lambda report: order.index(report.point)))


def _verdict(reference: Reference, checks: Mapping[str, _PromptCheck]) -> Report:
    """Return the verdict on an engine, from the checks of its prompts."""
    points = _points(reference, checks)
    first = next((p for p in points if not p.is_rounding), None)
    prompt = first.prompt if first else max(checks, key=lambda name: checks[name].weight)
    checked = checks[prompt]
    found = checked.explanations([p for p in points if p.prompt == prompt])
    found.sort(key=lambda e: (points.index(e[0]), e[2]))
    mistakes = {p.point: m.name for p, m, _ in reversed(found)}
    expected = checked.expected.name if checked.expected else None
    report = Report(checked.dtype, points, first, expected_difference=expected, mistakes=mistakes)
    if found and (first is None or points.index(found[0][0]) <= points.index(first)):
        point, mistake, error = found[0]
        if mistake.is_expected:
            changed = {name: replace(c, expected=mistake) for name, c in checks.items()}
            return _verdict(reference, changed)
        return replace(report, first=point, mistake=mistake.name, explained_error=error)
    if first is None:
        return report
    array, right = checked.given[first.point], checked.right[first.point]
    pattern = _pattern(array, right, first.tolerance, checked.dtype)
    return replace(report, pattern=pattern or None)


@dataclass(frozen=True)
class _PromptCheck:
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

    def reports(self, prompt: str, reference: Reference) -> Iterator[PointReport]:
        """Yield the result for each array."""
        rounded, exact = self.rounded_pass(), reference.arrays.get(prompt, {})
        ours = self.steps({name: rounded[name] for name in self.given}, self.expected)
        plain = self.steps(self.given) if self.expected else self.right
        for point, array in self.given.items():
            right = self.right[point]
            own_error = _distance(rounded[point], ours[point])
            # A number near a rounding boundary of float16 may round to its other neighbor.
            rounding_flips = _distance(plain[point], right) / 2
            floor = _floor(self.dtype, point, self.config)
            tolerance = max(_MARGIN * own_error, rounding_flips, floor)
            if self.dtype not in _WIDE and _common_change(array, right):
                tolerance = _floor("float32", point, self.config)
            from_reference = _distance(array, exact[point]) if point in exact else None
            yield PointReport(prompt, point, _distance(array, right), tolerance, from_reference)

    def explanations(
        self, reports: Sequence[PointReport]
    ) -> list[tuple[PointReport, Mistake, float]]:
        """Return (array, mistake, error with the mistake) wherever a mistake explains an array.

        In bfloat16 and float16, rounding can hide a mistake, so mistakes are also tried on arrays
        whose errors rounding explains.
        """
        tried = [r for r in reports if self.dtype not in _WIDE or not r.is_rounding]
        if not tried or len(self.ids) > _MAX_TOKENS:
            return []
        tolerances = {report.point: report.tolerance for report in reports}
        found = []
        for mistake in MISTAKES:
            if mistake.is_expected and (self.dtype not in _WIDE or self.expected):
                continue
            limit = _MAX_UNEXPLAINED_EXPECTED if mistake.is_expected else _MAX_UNEXPLAINED_SHARE
            wrong = self.steps(self.given, self.expected, mistake)
            for report in tried:
                x, right, changed = (a[report.point] for a in (self.given, self.right, wrong))
                error = _distance(x, changed)
                explains = error < limit * report.error
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
        weights = {n: _round(w, self.dtype).astype(wide) for n, w in self.weights.items()}
        _, arrays = self._run(weights, lambda _, x: _round(x, self.dtype), self.expected)
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
        config = self.config
        computes: dict[str, Callable[[PassStep], Array]] = {}
        for mistake in filter(None, mistakes):
            config = replace(config, **mistake.config)
            weights = mistake.changed_weights(weights)
            computes |= mistake.arrays
        steps: dict[str, Array] = {}
        arrays: dict[str, Array] = {}

        def hook(name: str, right: Array) -> Array:
            if compute := computes.get(split_name(name)[1]):
                right = compute(PassStep(name, right, arrays, weights, config))
            array = choose(name, right)
            array = array if array.shape == right.shape else right  # logits of the last token
            n_rows = len(self.given.get(name, right))
            steps[name], arrays[name] = right[-n_rows:], array[-n_rows:]
            return array

        context = PlainContext(self.ids, config, hook)
        with single_threaded_blas():  # threads lose time on small products
            gpt2(context, arrange_arrays(config, weights))
        return steps, arrays


def _floor(dtype: str, point: str, config: GPT2Config) -> float:
    """Return the least tolerance: in float32, twice the error of adding n numbers one by one.

    This error grows as √n. BLAS adds in a more accurate order than such a loop.
    """
    step = split_name(point)[1]
    if dtype != "float32" or step in _ELEMENTWISE:
        return _FLOOR[dtype]
    n = config.n_inner if step == "mlp.out" else config.n_embd
    return max(_FLOOR[dtype], 2.0**-23 * float(np.sqrt(n)))


def _rms(x: Array, axes: tuple[int, ...] | None = None) -> Any:
    """Return the root mean square."""
    return np.sqrt(np.mean(x * x, axes))


def _distance(x: Array, right: Array) -> float:
    """Return the root mean square of x - right, relative to that of `right`."""
    error = float(_rms(x - right) / (_rms(right) or 1.0))
    return error if np.isfinite(error) else np.inf


def _is_hidden(x: Array, right: Array, wrong: Array) -> bool:
    """Tell whether rounding errors of x contain the difference of `wrong` from `right`.

    The least-squares factor of (wrong - right) in (x - right) must be about 1, beyond chance.
    Samples are rows: one number may scale all errors of a row, as in layer norm.
    """
    error, effect = ((array - right).reshape(-1, x.shape[-1]) for array in (x, wrong))
    products, squares = (error * effect).sum(-1), (effect * effect).sum(-1)
    factor = products.sum() / squares.sum()
    noise = np.linalg.norm(products - factor * squares) / squares.sum()
    is_significant = len(error) > 3 and factor > _MIN_ROW_SIGNIFICANCE * noise
    return bool(abs(factor - 1) < 0.1 and is_significant)


def _common_change(x: Array, right: Array) -> tuple[float, float] | None:
    """Return a factor and a shift of all numbers that explain most of an error; None if none do.

    Rounding errors differ from row to row. Of a single row, rounding may change all numbers alike.
    """
    error, centered = x - right, right - right.mean()
    factor = float((centered * error).sum() / (centered * centered).sum())
    shift = float(error.mean() - factor * right.mean())
    rest = _rms(error - factor * right - shift)
    is_explained = x.shape[-2] > 3 and rest < _MAX_UNEXPLAINED_SHARE * _rms(error)
    return (1 + factor, shift) if is_explained else None


def _pattern(x: Array, right: Array, tolerance: float, dtype: str) -> str:
    """Describe an error: a common factor, its heads, tokens or columns, and a narrower dtype."""
    error = x - right
    if not np.isfinite(error).all():
        return "not all numbers are finite"
    notes = []
    if change := _common_change(x, right):
        notes.append(f"all numbers are {change[0]:.6g} times the right ones, {change[1]:+.2g}")
    for axis, name in enumerate(("heads", "tokens", "columns")[-x.ndim :]):
        errors = _rms(error, tuple(i for i in range(x.ndim) if i != axis))
        wrong = np.flatnonzero(errors > tolerance * _rms(right)).tolist()
        if len(wrong) <= x.shape[axis] * 7 / 8:
            listed = ", ".join(map(str, wrong[:6])) + ", …" * (len(wrong) > 6)
            notes.append(f"only in {len(wrong)} of {x.shape[axis]} {name}: {listed}")
    if (kind := _recognized([x])) in DTYPES[: DTYPES.index(dtype)]:
        notes.append(f"all numbers are {kind}")
    return "; ".join(notes)


def _round(x: Array, dtype: str) -> Array:
    """Round to a dtype and back; bfloat16 to nearest even, as in `transformers`."""
    if dtype != "bfloat16":
        return x.astype(dtype).astype(x.dtype)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(x.dtype)


def _recognized(arrays: Sequence[Array]) -> str:
    """Return the narrowest of `DTYPES` that holds all numbers of the arrays."""

    def holds(dtype: str) -> bool:
        return all(np.array_equal(_round(x, dtype), x, equal_nan=True) for x in arrays)

    return next(filter(holds, DTYPES))


@dataclass(frozen=True)
class TextReport:
    """Where a greedy continuation first differs from the reference one.

    Attributes:
        step: the first token that differs, counted from 0; None if the continuations agree.
        gap: the exact difference of the two best logits at that step.
        tolerance: the largest gap that rounding can close at that step.
    """

    step: int | None = None
    gap: float = 0.0
    tolerance: float = 0.0

    @property
    def is_rounding(self) -> bool:
        """Whether both continuations are correct, because rounding decides between two tokens."""
        return self.step is None or self.gap <= self.tolerance

    def __str__(self) -> str:
        if self.step is None:
            return "equal"
        verdict = "both are right" if self.is_rounding else "a bug: compare arrays"
        numbers = f"gap {self.gap:.2g}, rounding may be {self.tolerance:.2g}"
        return f"differs from token {self.step} on; {numbers}: {verdict}"


@np.errstate(all="ignore")
def check_texts(
    reference: Reference,
    continuations: Mapping[str, Sequence[int]],
    model: GPT2 | LanguageModel,
    dtype: str = "float32",
) -> dict[str, TextReport]:
    """Compare greedy continuations with the reference ones, up to the end of the shorter one.

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
        if prompt not in reference.greedy_ids:
            raise InvalidArgumentError(
                f"no prompt {prompt!r}; there are {', '.join(reference.ids)}"
            )
        is_list = isinstance(ids, Sequence) and len(ids) > 0 and all(map(is_integer, ids))
        check_argument(is_list, prompt, ids, "a list of at least one token id")
        right = reference.greedy_ids[prompt]
        if not right:
            raise InvalidArgumentError(
                f"the reference file has no continuation of prompt {prompt!r}; record the file "
                "with max_new_tokens of at least 1"
            )
        reports[prompt] = TextReport()
        step = common_length(right, ids)
        if step < min(len(right), len(ids)):
            before = [*reference.ids[prompt], *right[:step]]
            logits, exact = (
                _PromptCheck(weights, model.config, before, {}, name).rounded_pass()["logits"][-1]
                for name in (dtype, "float64")
            )
            tolerance = 2 * _MARGIN * float(np.abs(logits - exact).max())
            reports[prompt] = TextReport(step, reference.gaps[prompt][step], tolerance)
    return reports
