"""The two forms of a reply: completions and chat completions, whole or in chunks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from gpt2np import __version__
from gpt2np.generation.async_engine import Update
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.streaming import Completion
from gpt2np.language_model import LanguageModel
from gpt2np.server.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest
from gpt2np.server.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    Json,
    encode,
    finish_reason,
    prompt_logprobs,
    usage,
)


class Reply(ABC):
    """Builds the response to one request, or the chunks of its stream."""

    object_name: str
    chunk_name: str
    id_prefix: str

    def __init__(self, request: GenerationRequest, lm: LanguageModel, request_id: str) -> None:
        self._request, self._lm = request, lm
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
    def first_chunk(self, index: int, completion: Completion) -> Json | None:
        """Return the chunk of a choice before its first new token, if any."""

    @abstractmethod
    def chunk_choice(self, update: Update) -> Json:
        """Return the text and the log probabilities of an update, as fields of a choice."""

    def choice_json(self, index: int, completion: Completion) -> bytes:
        """Return one of the response's `choices` as JSON."""
        return encode(self.choice(index, completion))

    def response(self, choices: Sequence[bytes], n_prompt: int, n_new: int) -> bytes:
        """Return the response's JSON with `choices`; the numbers count prompt and new tokens."""
        counts = usage(n_prompt, 0 if self._drops_new_text else n_new)
        head = encode({**self._head, "object": self.object_name, "usage": counts})
        return head[:-1] + b',"choices":[' + b",".join(choices) + b"]}"

    def first_chunks(self, index: int, completion: Completion) -> list[Json]:
        """Return the chunks of a choice before its first new token."""
        chunk = self.first_chunk(index, completion)
        if not chunk:
            return []
        if self._request.return_token_ids:
            chunk |= {"token_ids": [], "prompt_token_ids": completion.prompt_ids}
        return [self._chunk({**chunk, "finish_reason": None})]

    def chunks(self, update: Update) -> list[Json]:
        """Return the chunks of an update."""
        if not update.text and not update.ids and not update.finish_reason:
            return []
        choice = {
            "index": update.index,
            "finish_reason": finish_reason(update.finish_reason),
            "stop_reason": update.stop_reason,
            **self.chunk_choice(update),
        }
        if self._request.return_token_ids:
            choice["token_ids"] = [] if self._drops_new_text else update.ids
        return [self._chunk(choice)]

    def last_chunks(self, n_prompt: int, n_new: int) -> list[Json]:
        """Return the chunk with the usage, if requested."""
        options = self._request.stream_options
        if not (options and options.include_usage):
            return []
        head = {**self._head, "object": self.chunk_name}
        counts = usage(n_prompt, 0 if self._drops_new_text else n_new)
        return [{**head, "choices": [], "usage": counts}]

    @property
    def _drops_new_text(self) -> bool:
        return False

    def _chunk(self, choice: Json) -> Json:
        options = self._request.stream_options
        null_usage = {"usage": None} if options and options.include_usage else {}
        return {**self._head, "object": self.chunk_name, "choices": [choice], **null_usage}

    def _ids(self, completion: Completion) -> Json:
        if not self._request.return_token_ids:
            return {}
        new_ids = [] if self._drops_new_text else completion.ids
        return {"token_ids": new_ids, "prompt_token_ids": completion.prompt_ids}


class CompletionReply(Reply):
    """The reply to POST /v1/completions."""

    object_name = chunk_name = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, request: CompletionRequest, lm: LanguageModel, request_id: str) -> None:
        super().__init__(request, lm, request_id)
        self._completion_request = request
        n_top, as_ids = request.logprobs or 0, bool(request.return_tokens_as_token_ids)
        new_writer = partial(CompletionLogprobs, lm.tokenizer, n_top, as_ids)
        self._writers: defaultdict[int, CompletionLogprobs] = defaultdict(new_writer)

    @property
    def _drops_new_text(self) -> bool:
        return self._completion_request.max_tokens == 0

    def choice(self, index: int, completion: Completion) -> Json:
        """Return one of the response's `choices`."""
        request = self._completion_request
        text, ids, logprobs = self._echo(completion)
        if not self._drops_new_text:
            text, ids = text + completion.text, ids + completion.ids
            logprobs = [*logprobs, *(completion.logprobs or ())]
        written = (
            self._writers[index].write(ids, logprobs) if request.logprobs is not None else None
        )
        reason = "length" if self._drops_new_text else finish_reason(completion.finish_reason)
        choice = {
            "index": index,
            "text": text,
            "logprobs": written,
            "finish_reason": reason,
            "stop_reason": None if self._drops_new_text else completion.stop_reason,
            **self._ids(completion),
        }
        if request.prompt_logprobs is not None:
            known = completion.prompt_logprobs or ()
            choice["prompt_logprobs"] = prompt_logprobs(self._lm.tokenizer, known)
        return choice

    def first_chunk(self, index: int, completion: Completion) -> Json | None:
        """Return the chunk with the prompt or its ids, if requested."""
        if not (self._completion_request.echo or self._request.return_token_ids):
            return None
        text, ids, logprobs = self._echo(completion)
        return {"index": index, "text": text, **self._logprobs(index, ids, logprobs)}

    def chunk_choice(self, update: Update) -> Json:
        """Return the text and the log probabilities of an update, as fields of a choice."""
        if self._drops_new_text:
            reason = update.finish_reason and "length"
            return {"text": "", "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return {"text": update.text, **self._logprobs(update.index, update.ids, update.logprobs)}

    def _echo(self, completion: Completion) -> tuple[str, list[int], list[TokenLogprob | None]]:
        """Return the prompt's text, ids and log probabilities, if requested."""
        if not self._completion_request.echo:
            return "", [], []
        unknown: list[TokenLogprob | None] = [None] * len(completion.prompt_ids)
        return completion.prompt, completion.prompt_ids, completion.prompt_logprobs or unknown

    def _logprobs(
        self, index: int, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> Json:
        if self._completion_request.logprobs is None:
            return {"logprobs": None}
        return {"logprobs": self._writers[index].write(ids, logprobs)}


class ChatReply(Reply):
    """The reply to POST /v1/chat/completions."""

    object_name, chunk_name = "chat.completion", "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, request: ChatCompletionRequest, lm: LanguageModel, request_id: str) -> None:
        super().__init__(request, lm, request_id)
        self._writer = ChatLogprobs(lm.tokenizer) if request.logprobs else None

    def choice(self, index: int, completion: Completion) -> Json:
        """Return one of the response's `choices`."""
        logprobs = completion.logprobs or ()
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text},
            "logprobs": self._writer.write(logprobs) if self._writer else None,
            "finish_reason": finish_reason(completion.finish_reason),
            "stop_reason": completion.stop_reason,
            **self._ids(completion),
        }

    def first_chunk(self, index: int, completion: Completion) -> Json | None:
        """Return the chunk with the role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None}

    def chunk_choice(self, update: Update) -> Json:
        """Return the text and the log probabilities of an update, as fields of a choice."""
        logprobs = self._writer.write(update.logprobs) if self._writer else None
        return {"delta": {"content": update.text} if update.text else {}, "logprobs": logprobs}
