"""Reference arrays: the exact pass at hook points, for some prompts, in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gpt2np.checkpoint.safetensors_file import write_safetensors
from gpt2np.data.files import as_path, atomic_path, check_readable
from gpt2np.errors import CheckpointError, check_argument
from gpt2np.interp.trace import trace
from gpt2np.kernels.array import Array

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel

PROMPTS = {
    "short": "The quick brown fox jumps over the lazy",
    "token": "The",
    "unicode": "Zürich, naïve café – 你好 🙂",
    "repeated": "one two one two one two one",
}
"""The built-in prompts; `record` adds "full", as many tokens as the model's context."""

_FULL_POINTS = ("embed", "blocks.*.resid", "ln_f")  # of a full context, patterns take gigabytes


@dataclass(frozen=True)
class Reference:
    """Exact results, by the name of the prompt.

    Attributes:
        model: the name of the model, as `gpt2np.load` takes it.
        ids: the token ids of each prompt.
        arrays: by prompt, the array of each recorded hook point, float64.
    """

    model: str
    ids: dict[str, list[int]]
    arrays: dict[str, dict[str, Array]]


def record(
    lm: LanguageModel,
    prompts: Mapping[str, str | Sequence[int]] | None = None,
    points: str | Sequence[str] = "*",
) -> Reference:
    """Run prompts through an exact model and record the arrays of the hook points.

    `prompts` maps names to texts or token ids. By default, the prompts are `PROMPTS` and "full", a
    prompt that fills the context; for "full", only the residual stream and the final layer norm are
    recorded.

    Raises:
        InvalidArgumentError: the model is not exact, or a hook point does not exist.
        ContextLengthError: a prompt is longer than the context.
    """
    check_argument(lm.model.exact, "lm", lm.name, "an exact model: load(…, exact=True)")
    all_ids = {
        name: lm.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
        for name, prompt in (PROMPTS if prompts is None else prompts).items()
    }
    selected = dict.fromkeys(all_ids, points)
    if prompts is None:
        base, n = [i for ids in all_ids.values() for i in ids], lm.model.config.n_positions
        all_ids["full"] = (base * (n // len(base) + 1))[:n]
        selected["full"] = _FULL_POINTS
    arrays = {name: dict(trace(lm, ids, selected[name]).arrays) for name, ids in all_ids.items()}
    return Reference(lm.name, all_ids, arrays)


def write_reference(reference: Reference, path: str | Path) -> None:
    """Write a safetensors file; its bytes are the same on every machine. Replaces an existing file.

    An array is named `prompt/point`, as in `short/blocks.0.attn.q`. The metadata has one entry,
    `gpt2np`: JSON with the model's name and the ids.

    Raises:
        OSError: the file can't be written.
    """
    tensors = {
        f"{prompt}/{point}": (array.shape, [array.reshape(-1)])
        for prompt, arrays in reference.arrays.items()
        for point, array in arrays.items()
    }
    described = {"format": 1, "model": reference.model, "ids": reference.ids}
    metadata = {"gpt2np": json.dumps(described, ensure_ascii=False)}
    with atomic_path(as_path(path)) as temporary:
        write_safetensors(temporary, "F64", tensors, metadata)


def read_reference(path: str | Path) -> Reference:
    """Read a file that `write_reference` has written.

    Raises:
        CheckpointError: the file is missing, damaged, or was not written by `write_reference`.
    """
    path = as_path(path)
    check_readable(path, CheckpointError)
    try:
        with safe_open(path, "np") as file:
            content: dict[str, Any] = json.loads((file.metadata() or {})["gpt2np"])
            arrays: dict[str, dict[str, Array]] = {name: {} for name in content["ids"]}
            for name in file.keys():  # noqa: SIM118, a safe_open is not a mapping
                prompt, _, point = name.partition("/")
                arrays[prompt][point] = file.get_tensor(name)
        return Reference(content["model"], content["ids"], arrays)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        cause = "" if isinstance(error, KeyError) else f" ({error})"
        raise CheckpointError(
            f"{path} has no reference arrays{cause}; write them with gpt2np parity record"
        ) from error
