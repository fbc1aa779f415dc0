"""The result of a generation; results as JSON objects, and as columns of a .parquet file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gpt2np.display import colored_tokens
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.token_healing import prompt_notice
from gpt2np.tokenizer import Tokenizer

FinishReason = Literal["eos", "length", "stop", "time", "cancelled"]


@dataclass(frozen=True)
class Completion:
    """The result of a generation. It never changes, so threads can share it.

    Attributes:
        prompt: the text of the prompt.
        prompt_ids: the ids of the prompt; for an empty prompt, the end-of-text id.
        prompt_tokens: the text of each of `prompt_ids`; see `Tokenizer.token_texts`.
        text: the continuation, without the prompt and without the stop string.
        ids: all generated ids, including any end-of-text id and the ids of a stop string.
        tokens: the text of each of `ids`.
        finish_reason: "eos" (end-of-text id), "stop" (stop string, stop id, or a complete
            constraint), "length" (max_new_tokens, or a full context), "time" (max_time),
            "cancelled"; None while the generation runs.
        stop_reason: for the finish reason "stop", the stop string or stop id that ended the text;
            None for a complete constraint or a stopping criterion.
        seed: the seed that reproduces this continuation.
        model: the model's name.
        seconds: time of the generation, including prefill and any wait in a queue; ignored by `==`.
        logprobs: the log probability of each of `ids`, if requested.
        prompt_logprobs: the log probability of each of `prompt_ids`, if requested; None for the
            first id.
        alternatives: further continuations of the prompt, if requested.
        options: the options of the generation; ignored by `==`.
    """

    prompt: str
    prompt_ids: list[int]
    text: str
    ids: list[int]
    finish_reason: FinishReason | None
    seed: int
    model: str
    seconds: float = field(compare=False)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    alternatives: tuple[Completion, ...] = ()
    prompt_tokens: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    stop_reason: str | int | None = None
    options: GenerationOptions = field(default_factory=GenerationOptions, repr=False, compare=False)

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def _repr_html_(self) -> str:
        """Return the text for notebooks; with `logprobs`, tokens are colored by probability."""
        if not self.logprobs:
            return colored_tokens(self.prompt, [self.text])
        logprobs = [token.logprob for token in self.logprobs]
        return colored_tokens(self.prompt, self.tokens, logprobs)

    @property
    def notice(self) -> str | None:
        """Advice about the space after the prompt, or None; see `prompt_notice`."""
        return prompt_notice(self.prompt, self.options)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second; the time includes prefill."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


COLUMNS = {
    "line": int,
    "id": object,
    "prompt": str,
    "prompt_ids": [int],
    "prompt_tokens": [str],
    "text": str,
    "ids": [int],
    "tokens": [str],
    "finish_reason": str,
    "seed": int,
    "model": str,
    "logprobs": object,
    "prompt_logprobs": object,
    "alternatives": object,
}
"""The columns of a .parquet file of results; see `gpt2np.data.parquet.Columns`."""

_FIELDS = [*COLUMNS][2:11]  # "prompt" to "model"


def completion_as_json(
    completion: Completion, tokenizer: Tokenizer, **more: object
) -> dict[str, Any]:
    """Convert a completion to a JSON object, with the text of each token beside its id.

    `more` are further values of the object.
    """
    content = {name: getattr(completion, name) for name in _FIELDS} | more
    for name in ("logprobs", "prompt_logprobs"):
        tokens: list[TokenLogprob | None] | None = getattr(completion, name)
        if tokens is not None:
            content[name] = [token and _logprob_as_json(token, tokenizer) for token in tokens]
    return content


def _logprob_as_json(token: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "id": token.id,
        "token": tokenizer.token_texts([token.id])[0],
        "logprob": token.logprob,
        "top": token.top,
        "top_tokens": tokenizer.token_texts(token_id for token_id, _ in token.top),
    }
