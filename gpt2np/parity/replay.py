"""Replay a receipt: generate the text again, and find the first step that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.data.files import as_path, read_json_object
from gpt2np.errors import (
    CheckpointError,
    ContextLengthError,
    InvalidArgumentError,
    errors_at,
    is_integer,
    short_repr,
)
from gpt2np.generation.options import GenerationOptions

_KINDS = {
    "model": str,
    "exact": bool,
    "dtype": str,
    "options": dict,
    "prompt_ids": list,
    "ids": list,
    "logits": list,
    "weights_and_config": str,
    "tokenizer": str,
    "is_cut_off": bool,
}

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel


def read_receipt(path: str | Path) -> dict[str, Any]:
    """Read a receipt from a JSON file.

    Raises:
        CheckpointError: the file is missing, damaged, or not a receipt.
    """
    content = read_json_object(as_path(path), CheckpointError)
    with errors_at(f"{path}: "):
        _check(content)
    return content


def _check(content: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the content lacks what `replay` reads."""
    for name, kind in _KINDS.items():
        if not isinstance(content.get(name), kind):
            raise CheckpointError(
                f"no receipt of gpt2np generate: {name!r} is {short_repr(content.get(name))}"
            )
    ids = [*content["prompt_ids"], *content["ids"]]
    if not all(map(is_integer, ids)) or len(content["ids"]) != len(content["logits"]):
        raise CheckpointError("no receipt of gpt2np generate: its ids or digests are damaged")


def replay(content: Mapping[str, Any], lm: LanguageModel) -> str | None:
    """Generate the text of a receipt again; return the first difference, or None if all is equal.

    The time limit is not applied. If the text was cut off, only its tokens are compared.

    Raises:
        CheckpointError: the content is not a receipt.
    """
    _check(content)
    ids, digests = content["ids"], content["logits"]
    values: dict[str, Any] = {"max_time": None}
    for name, value in content["options"].items():
        values.setdefault(name, tuple(value) if isinstance(value, list) else value)
    try:
        try:
            options = GenerationOptions(**values)
        except TypeError as error:  # an unknown option
            raise InvalidArgumentError(str(error)) from error
        if content["is_cut_off"]:
            stream = lm.stream(content["prompt_ids"], options)
            while stream.running and len(stream.sequence.ids) < len(ids):
                stream.step()
            done = replace(stream.completion, ids=stream.sequence.ids[: len(ids)])
        else:
            best = lm.generate(content["prompt_ids"], options)
            done = next((found for found in best.alternatives if found.ids == ids), best)
    except (InvalidArgumentError, ContextLengthError) as error:
        raise CheckpointError(f"no receipt of this version's gpt2np generate ({error})") from error
    again = done.receipt(lm)
    for name in ("weights_and_config", "tokenizer", "exact", "dtype"):
        if again[name] != content[name]:
            return f"{name} is {again[name]}; in the receipt {content[name]}"
    for step, (old_id, new_id) in enumerate(zip(ids, done.ids, strict=False)):
        if digests[step] != again["logits"][step]:
            same = "the same token" if old_id == new_id else f"token {new_id} instead of {old_id}"
            return f"step {step}: other logits, {same}"
        if old_id != new_id:
            return f"step {step}: token {new_id} instead of {old_id}, from the same logits"
    if len(ids) != len(done.ids):
        return f"{len(done.ids)} tokens instead of {len(ids)}"
    return None
