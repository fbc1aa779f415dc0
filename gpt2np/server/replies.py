"""The two forms of a reply: completions and chat completions, whole or in chunks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar

from gpt2np import __version__
from gpt2np.generation.async_engine import Update
from gpt2np.generation.completion import Completion
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.language_model import LanguageModel
from gpt2np.server.protocol import ChatCompletionRequest, CompletionRequest
from gpt2np.server.responses import (
    CompletionLogprobs,
    Json,
    Usage,
    chat_logprobs,
    finish_reason,
    json_bytes,
    prompt_logprobs,
)

R = TypeVar("R", CompletionRequest, ChatCompletionRequest)


class Reply(ABC, Generic[R]):
    """Builds the response to one request, or the chunks of its stream.

    Attributes:
        request: the request.
        id: the response's id.
    """

    object_name: str
    chunk_name: str
    id_prefix: str

    def __init__(self, request: R, lm: LanguageModel, request_id: str) -> None:
        self.request: R = request
        self._lm = lm
        self._drops_new_text = request.max_tokens == 0
        self.id = f"{self.id_prefix}-{request_id}"
        self._head = {
            "id": self.id,
            "created": int(time.time()),
            "model": request.model or lm.name,
            "system_fingerprint": f"gpt2np-{__version__}",
        }

    @abstractmethod
    def choice(self, index: int, completion: Completion) -> Json:
        """Return one of the response's `choices`."""

    @abstractmethod
    def first_choice(self, index: int, completion: Completion) -> Json | None:
        """Return a choice of the first chunk, before the first new token, if any."""

    @abstractmethod
    def new_fields(self, update: Update) -> Json:
        """Return the fields of a chunk's choice for new text and log probabilities."""

    def response(self, choices: Sequence[bytes], n_prompt: int, n_new: int) -> bytes:
        """Return the response's JSON with `choices`; the numbers count prompt and new tokens."""
        head = json_bytes(
            {**self._head, "object": self.object_name, **self._usage(n_prompt, n_new)}
        )
        return head[:-1] + b',"choices":[' + b",".join(choices) + b"]}"

    def first_chunk(self, index: int, completion: Completion) -> Json | None:
        """Return the chunk of a choice before its first new token, if any."""
        choice = self.first_choice(index, completion)
        if choice is None:
            return None
        if self.request.return_token_ids:
            choice |= {"token_ids": [], "prompt_token_ids": completion.prompt_ids}
        return self._chunk({**choice, "finish_reason": None})

    def chunk(self, update: Update) -> Json:
        choice = {
            "index": update.index,
            "finish_reason": finish_reason(update.finish_reason),
            "stop_reason": update.stop_reason,
            **self.new_fields(update),
        }
        if self.request.return_token_ids:
            choice["token_ids"] = [] if self._drops_new_text else update.ids
        return self._chunk(choice)

    def usage_chunk(self, n_prompt: int, n_new: int) -> Json | None:
        """Return the chunk with the usage, if requested."""
        if not self._includes_usage:
            return None
        head = {**self._head, "object": self.chunk_name}
        return {**head, "choices": [], **self._usage(n_prompt, n_new)}

    @property
    def _includes_usage(self) -> bool:
        options = self.request.stream_options
        return bool(options and options.include_usage)

    def _usage(self, n_prompt: int, n_new: int) -> Json:
        n_new = 0 if self._drops_new_text else n_new
        counts: Usage = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_new,
            "total_tokens": n_prompt + n_new,
        }
        return {"usage": counts}

    def _chunk(self, choice: Json) -> Json:
        null_usage = {"usage": None} if self._includes_usage else {}
        return {**self._head, "object": self.chunk_name, "choices": [choice], **null_usage}

    def _ids(self, completion: Completion) -> Json:
        if not self.request.return_token_ids:
            return {}
        new_ids = [] if self._drops_new_text else completion.ids
        return {"token_ids": new_ids, "prompt_token_ids": completion.prompt_ids}


class CompletionReply(Reply[CompletionRequest]):
    """The reply to POST /v1/completions."""

    object_name = chunk_name = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, request: CompletionRequest, lm: LanguageModel, request_id: str) -> None:
        super().__init__(request, lm, request_id)
        n_top, as_ids = request.logprobs or 0, bool(request.return_tokens_as_token_ids)
        new_writer = partial(CompletionLogprobs, lm.tokenizer, n_top, as_ids)
        self._writers: defaultdict[int, CompletionLogprobs] = defaultdict(new_writer)

    def choice(self, index: int, completion: Completion) -> Json:
        text, ids, logprobs = self._echo(completion)
        if not self._drops_new_text:
            text, ids = text + completion.text, ids + completion.ids
            logprobs = [*logprobs, *(completion.logprobs or ())]
        reason = "length" if self._drops_new_text else finish_reason(completion.finish_reason)
        choice = {
            "index": index,
            "text": text,
            **self._logprobs(index, ids, logprobs),
            "finish_reason": reason,
            "stop_reason": None if self._drops_new_text else completion.stop_reason,
            **self._ids(completion),
        }
        if self.request.prompt_logprobs is not None:
            known = completion.prompt_logprobs or ()
            choice["prompt_logprobs"] = prompt_logprobs(self._lm.tokenizer, known)
        return choice

    def first_choice(self, index: int, completion: Completion) -> Json | None:
        if not (self.request.echo or self.request.return_token_ids):
            return None
        text, ids, logprobs = self._echo(completion)
        return {"index": index, "text": text, **self._logprobs(index, ids, logprobs)}

    def new_fields(self, update: Update) -> Json:
        if self._drops_new_text:
            reason = update.finish_reason and "length"
            return {"text": "", "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return {"text": update.text, **self._logprobs(update.index, update.ids, update.logprobs)}

    def _echo(self, completion: Completion) -> tuple[str, list[int], list[TokenLogprob | None]]:
        """Return the prompt's text, ids and log probabilities, if requested."""
        if not self.request.echo:
            return "", [], []
        unknown: list[TokenLogprob | None] = [None] * len(completion.prompt_ids)
        return completion.prompt, completion.prompt_ids, completion.prompt_logprobs or unknown

    def _logprobs(
        self, index: int, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> Json:
        is_wanted = self.request.logprobs is not None
        return {"logprobs": self._writers[index].write(ids, logprobs) if is_wanted else None}


class ChatReply(Reply[ChatCompletionRequest]):
    """The reply to POST /v1/chat/completions."""

    object_name, chunk_name = "chat.completion", "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def choice(self, index: int, completion: Completion) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text},
            "logprobs": self._logprobs(completion.logprobs or ()),
            "finish_reason": finish_reason(completion.finish_reason),
            "stop_reason": completion.stop_reason,
            **self._ids(completion),
        }

    def first_choice(self, index: int, completion: Completion) -> Json | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None}

    def new_fields(self, update: Update) -> Json:
        delta = {"content": update.text} if update.text else {}
        return {"delta": delta, "logprobs": self._logprobs(update.logprobs)}

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        return chat_logprobs(self._lm.tokenizer, logprobs) if self.request.logprobs else None


AnyReply = CompletionReply | ChatReply
