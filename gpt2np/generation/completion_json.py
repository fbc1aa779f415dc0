"""The results of prompts as JSON objects, and as columns of a .parquet file."""

from __future__ import annotations

from typing import Any

from gpt2np.generation.completion import Completion
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.tokenizer import Tokenizer

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
