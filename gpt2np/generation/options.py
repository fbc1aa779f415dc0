"""What a user may choose about a generation, and what the model's own files propose."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpt2np.errors import CheckpointError, InvalidArgumentError

GENERATION_CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True)
class GenerationOptions:
    """How to continue a text.

    Attributes:
        max_new_tokens: stop after this many, at least 1.
        temperature: 0 takes the likeliest token (greedy); above 0 samples.
        top_k: sample among the k likeliest tokens only; 0 for no limit.
        top_p: sample among the fewest tokens that together reach this probability, 0 < p ≤ 1.
        seed: of the random stream; None chooses one.
        stop: texts that end the generation; none of them appears in the result.

    Raises:
        InvalidArgumentError: a value out of its range.
    """

    max_new_tokens: int = 200
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "at least 1")
        # Written so that nan, which compares false with everything, is refused too.
        finite = 0 <= self.temperature < float("inf")
        _require(finite, "temperature", self.temperature, "0 (greedy) or above, and finite")
        _require(self.top_k >= 0, "top_k", self.top_k, "at least 1, or 0 for no limit")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(self.seed is None or self.seed >= 0, "seed", self.seed, "0 or above")
        texts = not isinstance(self.stop, str) and all(self.stop)
        _require(texts, "stop", self.stop, "a sequence of texts, none of them empty")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidArgumentError(f"{name} is {value!r}; it must be {expected}")


def read_generation_config(folder: Path) -> tuple[GenerationOptions, frozenset[int]]:
    """The options that a folder's `generation_config.json` proposes and the ids that end a text.

    What the file doesn't say, and a folder without the file, leaves gpt2np's own defaults.

    Raises:
        CheckpointError: the file is damaged or holds an impossible value.
    """
    path = folder / GENERATION_CONFIG_FILE
    if not path.exists():
        return GenerationOptions(), frozenset()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(GenerationOptions)} - {"seed", "stop"}
        chosen = {name: content[name] for name in known if content.get(name) is not None}
        if content.get("do_sample") is False:
            chosen["temperature"] = 0.0
        options = replace(GenerationOptions(), **chosen)
        end = content.get("eos_token_id")
        ends = frozenset() if end is None else frozenset(end if isinstance(end, list) else [end])
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} can't be used: {error}") from error
    return options, ends
