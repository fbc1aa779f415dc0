"""Responses of OpenAI's protocol, as JSON objects."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

from gpt2np.errors import printable
from gpt2np.generation.completion import FinishReason
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.tokenizer import Tokenizer

Json = dict[str, Any]


class Usage(TypedDict):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Logprobs(TypedDict):
    """Log probabilities of the tokens of a completion; lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _Choice(TypedDict):
    index: int
    finish_reason: Literal["stop", "length"]
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChoice(_Choice):
    """One continuation of a prompt."""

    text: str
    logprobs: Logprobs | None
    prompt_logprobs: NotRequired[list[Any]]


class AnswerMessage(TypedDict):
    """The model's answer."""

    role: Literal["assistant"]
    content: str


class ChatChoice(_Choice):
    """One answer."""

    message: AnswerMessage
    logprobs: dict[str, Any] | None


class _Response(TypedDict):
    id: str
    created: int
    model: str
    usage: Usage
    system_fingerprint: str


class CompletionResponse(_Response):
    """The response of POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatCompletionResponse(_Response):
    """The response of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ErrorDetail(TypedDict):
    """What is wrong; `param` names the field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(TypedDict):
    """The response to a request that has failed."""

    error: ErrorDetail


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_SLICE = 4096  # numbers or texts to encode at a time
_MIN_LOGPROB = -9999.0  # JSON has no -inf
_MAX_MESSAGE = 400  # bytes; JSON has at most two bytes for each of a printable text
_MAX_PARAM = 50  # bytes


class CompletionLogprobs:
    """Writes `logprobs` of completions: lists of tokens, log probabilities and text offsets.

    An offset counts the characters of the choice's text that are complete before the token.
    """

    def __init__(self, tokenizer: Tokenizer, n_top: int, tokens_as_ids: bool) -> None:
        self._tokenizer, self._n_top, self._tokens_as_ids = tokenizer, n_top, tokens_as_ids
        self._decoder = tokenizer.streaming_decoder()
        self._offset = 0

    def write(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> Json:
        """Return the `logprobs` of the next ids. A prompt's first id has None."""
        offsets = []
        for token_id in ids:
            offsets.append(self._offset)
            self._offset += len(self._decoder.push(token_id))
        return {
            "tokens": self._texts(ids),
            "token_logprobs": [_finite(p.logprob) if p else None for p in logprobs],
            "top_logprobs": [self._top(p) if p else None for p in logprobs],
            "text_offset": offsets,
        }

    def _texts(self, ids: Sequence[int]) -> list[str]:
        if self._tokens_as_ids:
            return [f"token_id:{token_id}" for token_id in ids]
        return self._tokenizer.token_texts(ids)

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        """Map the most likely tokens and the token itself to their log probabilities."""
        pairs = [*token.top[: self._n_top], (token.id, token.logprob)]
        top: dict[str, float] = {}
        for text, (_, logprob) in zip(self._texts([i for i, _ in pairs]), pairs, strict=True):
            top[text] = max(top.get(text, _MIN_LOGPROB), _finite(logprob))
        return top


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> Json:
    """Return `logprobs` of chat completions: a list of tokens with bytes and log probability."""

    def entry(token_id: int, logprob: float) -> Json:
        [text] = tokenizer.token_texts([token_id])
        data = tokenizer.vocabulary.token_bytes.get(token_id, b"")
        return {"token": text, "logprob": _finite(logprob), "bytes": list(data)}

    content = [
        {**entry(p.id, p.logprob), "top_logprobs": [entry(*t) for t in p.top]} for p in logprobs
    ]
    return {"content": content}


def prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob | None]) -> list[Any]:
    """Return vLLM's `prompt_logprobs`: for each id, a dict from ids to log probabilities."""

    def entry(token_id: int, logprob: float) -> Json:
        [text] = tokenizer.token_texts([token_id])
        return {"logprob": _finite(logprob), "decoded_token": text}

    return [
        {str(i): entry(i, p) for i, p in [*token.top, (token.id, token.logprob)]} if token else None
        for token in logprobs
    ]


def finish_reason(reason: FinishReason | None) -> str | None:
    """Return OpenAI's name of a finish reason."""
    return "stop" if reason == "eos" else reason


def error_body(
    message: str, kind: str, code: str | None = None, param: str | None = None
) -> ErrorResponse:
    """Return the body of an error response, of less than 1,000 bytes: long texts are cut."""
    param = param and _shorten(param, _MAX_PARAM)
    message = _shorten(message, _MAX_MESSAGE)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _shorten(text: str, n_bytes: int) -> str:
    data = printable(text[:n_bytes]).encode()
    return data.decode() if len(data) < n_bytes else f"{data[:n_bytes].decode(errors='ignore')}…"


def event(data: Json | ErrorResponse) -> bytes:
    """Return a server-sent event."""
    return b"data: %b\n\n" % json_bytes(data)


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON. The encoder keeps Python's interpreter lock until it is done."""
    return _ENCODER.encode(value).encode()


def json_pieces(body: Json) -> Iterator[bytes]:
    """Yield the JSON of an object in pieces, so that other threads run in between."""
    separator = b"{"
    for name, value in body.items():
        yield separator + json_bytes(name) + b":"
        separator = b","
        if isinstance(value, list):
            n = 1 if value and isinstance(value[0], (list, dict)) else _SLICE
            slices = (value[start : start + n] for start in range(0, len(value), n))
            yield b"[" + b",".join(json_bytes(part)[1:-1] for part in slices) + b"]"
        else:
            yield json_bytes(value)
    yield b"}"


DONE = b"data: [DONE]\n\n"


def _finite(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB) if not math.isnan(logprob) else _MIN_LOGPROB
