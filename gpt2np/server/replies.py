"""From a request to its sequences, then to a response of OpenAI's protocol, or to its events."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.async_engine import Update
from gpt2np.generation.complete import join_continuations
from gpt2np.generation.completion import Completion, FinishReason
from gpt2np.generation.options import TEXT_CONSTRAINTS, GenerationOptions
from gpt2np.generation.request import GenerateArguments
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.sequence import start_sequences
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.runtime.arguments import check_ids
from gpt2np.server.engine import LONG_WORK, PREPARATION, Engine, RunningRequest, run_on
from gpt2np.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    hooks_of,
)
from gpt2np.tokenizer import Tokenizer

_MAX_LOGPROBS = 2_000_000  # in all choices together, if they fill the context
_DEFAULTS = GenerationOptions(temperature=1, top_k=0)  # OpenAI's
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
DONE = b"data: [DONE]\n\n"
_MIN_LOGPROB = -9999.0  # JSON has no -inf

Json = dict[str, Any]
R = TypeVar("R", CompletionRequest, ChatCompletionRequest)
P = TypeVar("P", Completion, Update)


class Reply(ABC, Generic[R]):
    """Builds the response to one request, or the chunks of its stream."""

    object_name: str
    chunk_name: str
    id_prefix: str
    has_one_prompt: bool  # whose ids then stand beside the choices, as in vLLM

    def __init__(self, request: R, lm: LanguageModel, request_id: str) -> None:
        self.request: R = request
        self._lm = lm
        self._head = {
            "id": f"{self.id_prefix}-{request_id}",
            "created": int(time.time()),
            "model": request.model or lm.name,
        }
        options = request.stream_options
        self._includes_usage = bool(options and options.include_usage)

    @abstractmethod
    def choice(self, index: int, completion: Completion) -> Json:
        """Return one of the response's `choices`."""

    @abstractmethod
    def first_choice(self, index: int, completion: Completion) -> Json | None:
        """Return a choice of the first chunk, before the first new token, if any."""

    @abstractmethod
    def new_fields(self, update: Update) -> Json:
        """Return the fields of a chunk's choice for new text and log probabilities."""

    def response(
        self, choices: Sequence[bytes], n_prompt: int, n_new: int, prompt_ids: Sequence[int]
    ) -> bytes:
        """Return the response's JSON with `choices`; the numbers count prompt and new tokens."""
        head = {**self._head, "object": self.object_name, **self._usage(n_prompt, n_new)}
        if self.has_one_prompt:
            head |= self._prompt_ids(prompt_ids)
        return json_bytes(head)[:-1] + b',"choices":[' + b",".join(choices) + b"]}"

    def first_event(self, index: int, completion: Completion) -> bytes:
        """Return the event of a choice before its first new token, if any."""
        choice = self.first_choice(index, completion)
        if choice is None:
            return b""
        ids = self._prompt_ids(completion.prompt_ids)
        choice |= {"finish_reason": None} | ({"token_ids": []} if ids else {})
        if self.has_one_prompt:
            return event(self._chunk(choice) | ids)
        return event(self._chunk(choice | ids))

    def chunk(self, update: Update) -> Json:
        choice = {"index": update.index, **self.new_fields(update), **self._end(update)}
        return self._chunk(choice)

    def usage_chunk(self, n_prompt: int, n_new: int) -> Json | None:
        """Return the chunk with the usage, if requested."""
        if not self._includes_usage:
            return None
        head = {**self._head, "object": self.chunk_name}
        return {**head, "choices": [], **self._usage(n_prompt, n_new)}

    def _usage(self, n_prompt: int, n_new: int) -> Json:
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n_new}
        return {"usage": {**usage, "total_tokens": n_prompt + n_new}}

    def _chunk(self, choice: Json) -> Json:
        null_usage = {"usage": None} if self._includes_usage else {}
        return {**self._head, "object": self.chunk_name, "choices": [choice], **null_usage}

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        """Return OpenAI's name of a finish reason."""
        return "stop" if reason == "eos" else reason

    def _end(self, part: Completion | Update) -> Json:
        """Return the fields of a choice after its text."""
        ids = {"token_ids": part.ids} if self.request.return_token_ids else {}
        reason = self.finish_reason(part.finish_reason)
        return {"finish_reason": reason, "stop_reason": part.stop_reason, **ids}

    def _prompt_ids(self, ids: Sequence[int]) -> Json:
        return {"prompt_token_ids": ids} if self.request.return_token_ids else {}


class CompletionReply(Reply[CompletionRequest]):
    """The reply to POST /v1/completions."""

    object_name = chunk_name = "text_completion"
    id_prefix, has_one_prompt = "cmpl", False

    def __init__(self, request: CompletionRequest, lm: LanguageModel, request_id: str) -> None:
        super().__init__(request, lm, request_id)
        new_writer = partial(CompletionLogprobs, lm.tokenizer, request.logprobs or 0)
        self._writers: defaultdict[int, CompletionLogprobs] = defaultdict(new_writer)

    def choice(self, index: int, completion: Completion) -> Json:
        text, ids, logprobs = self._echo(completion)
        logprobs = [*logprobs, *(completion.logprobs or ())]
        choice = {
            "index": index,
            "text": text + completion.text,
            **self._logprobs(index, ids + completion.ids, logprobs),
            **self._end(completion),
            **self._prompt_ids(completion.prompt_ids),
        }
        if (n_top := self.request.prompt_logprobs) is not None:
            known = completion.prompt_logprobs or ()
            choice["prompt_logprobs"] = prompt_logprobs(self._lm.tokenizer, known, n_top)
        return choice

    def first_choice(self, index: int, completion: Completion) -> Json | None:
        if not (self.request.echo or self.request.return_token_ids):
            return None
        text, ids, logprobs = self._echo(completion)
        return {"index": index, "text": text, **self._logprobs(index, ids, logprobs)}

    def new_fields(self, update: Update) -> Json:
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
    id_prefix, has_one_prompt = "chatcmpl", True

    def choice(self, index: int, completion: Completion) -> Json:
        message: Json = {"role": "assistant", "content": completion.text}
        if function := self.request.forced_function:
            call = self._call(index, function.name, completion.text)
            message |= {"content": None, "tool_calls": [call]}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs or ()),
            **self._end(completion),
        }

    def first_choice(self, index: int, completion: Completion) -> Json | None:
        delta: Json = {"role": "assistant", "content": ""}
        if function := self.request.forced_function:
            call = {"index": 0, **self._call(index, function.name, "")}
            delta |= {"content": None, "tool_calls": [call]}
        return {"index": index, "delta": delta, "logprobs": None}

    def new_fields(self, update: Update) -> Json:
        delta: Json = {}
        if update.text and self.request.forced_function:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": update.text}}]}
        elif update.text:
            delta = {"content": update.text}
        return {"delta": delta, "logprobs": self._logprobs(update.logprobs)}

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        """Return OpenAI's name of a finish reason.

        The end of a call is "tool_calls" with tool_choice "required", "stop" with a named function.
        """
        is_call = reason in ("eos", "stop") and self.request.tool_choice == "required"
        return "tool_calls" if is_call else super().finish_reason(reason)

    def _call(self, index: int, name: str, arguments: str) -> Json:
        function = {"name": name, "arguments": arguments}
        return {"id": f"call-{self._head['id']}-{index}", "type": "function", "function": function}

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        return chat_logprobs(self._lm.tokenizer, logprobs) if self.request.logprobs else None


AnyReply = CompletionReply | ChatReply


class CompletionLogprobs:
    """Writes `logprobs` of completions: lists of tokens, log probabilities and text offsets.

    An offset counts the characters of the choice's text that are complete before the token.
    """

    def __init__(self, tokenizer: Tokenizer, n_top: int) -> None:
        self._tokenizer, self._n_top = tokenizer, n_top
        self._decoder = tokenizer.streaming_decoder()
        self._offset = 0

    def write(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> Json:
        """Return the `logprobs` of the next ids. A prompt's first id has None."""
        offsets = []
        for token_id in ids:
            offsets.append(self._offset)
            self._offset += len(self._decoder.push(token_id))
        return {
            "tokens": self._tokenizer.token_texts(ids),
            "token_logprobs": [_finite(p.logprob) if p else None for p in logprobs],
            "top_logprobs": [self._top(p) if p else None for p in logprobs],
            "text_offset": offsets,
        }

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        """Map the token itself and then the most likely ones to their log probabilities."""
        pairs = [(token.id, token.logprob), *token.top[: self._n_top]]
        top: dict[str, float] = {}
        texts = self._tokenizer.token_texts([token_id for token_id, _ in pairs])
        for text, (_, logprob) in zip(texts, pairs, strict=True):
            top[text] = max(top.get(text, _MIN_LOGPROB), _finite(logprob))
        return top


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> Json:
    """Return `logprobs` of chat completions: a list of tokens with bytes and log probability.

    As in vLLM, each `top_logprobs` begins with the token itself.
    """

    def entry(token_id: int, logprob: float) -> Json:
        [text] = tokenizer.token_texts([token_id])
        data = tokenizer.vocabulary.token_bytes.get(token_id, b"")
        return {"token": text, "logprob": _finite(logprob), "bytes": list(data)}

    content = []
    for p in logprobs:
        alternatives = [pair for pair in p.top if pair[0] != p.id]
        top = [(p.id, p.logprob), *alternatives][: len(p.top)]
        content.append({**entry(p.id, p.logprob), "top_logprobs": [entry(*pair) for pair in top]})
    return {"content": content}


def prompt_logprobs(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob | None], n_top: int
) -> list[Any]:
    """Return vLLM's `prompt_logprobs`: for each id, a dict from ids to log probabilities."""

    def entries(token: TokenLogprob) -> Json:
        top = token.top[:n_top]
        found = [(*pair, rank) for rank, pair in enumerate(top, 1)]
        found += [] if token.id in dict(top) else [(token.id, token.logprob, token.rank)]
        texts = tokenizer.token_texts([token_id for token_id, _, _ in found])
        return {
            str(i): {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}
            for (i, logprob, rank), text in zip(found, texts, strict=True)
        }

    return [token and entries(token) for token in logprobs]


def without_new_text(part: P) -> P:
    """Return a completion or an update without its text: max_tokens=0 asks only for the prompt."""
    reason = part.finish_reason and "length"
    return replace(part, text="", ids=[], logprobs=[], finish_reason=reason, stop_reason=None)


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> Json:
    """Return the body of an error response."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def event(data: Json) -> bytes:
    """Return a server-sent event."""
    return b"data: %b\n\n" % json_bytes(data)


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON. The encoder keeps Python's interpreter lock until it is done."""
    return _ENCODER.encode(value).encode()


def _finite(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB) if not math.isnan(logprob) else _MIN_LOGPROB


async def start_request(
    engine: Engine,
    request: GenerationRequest,
    prompts: Sequence[Prompt | Callable[[], Prompt]],
) -> RunningRequest:
    """Take places in the queue, then encode or render the prompts and create the sequences."""
    arguments, config = request.arguments(), engine.lm.model.config
    n_sequences = len(prompts) * (request.n or 1)
    options: Any = arguments
    per_token = max(1 + options.get(name, -1) for name in ("logprobs", "prompt_logprobs"))
    if n_sequences * config.n_positions * per_token > _MAX_LOGPROBS:
        raise InvalidArgumentError(
            "logprobs, prompt_logprobs and n ask for more than "
            f"{_MAX_LOGPROBS:,} log probabilities; send several requests",
            param="logprobs",
        )
    arguments["interventions"] = hooks_of(request.interventions or (), config)
    running = engine.start(n_sequences, "prompt" if len(prompts) > 1 else "n")
    try:
        for prompt in prompts:
            if callable(prompt):
                prompt = await run_on(LONG_WORK, prompt)
            has_constraint = any(arguments.get(name) for name in TEXT_CONSTRAINTS)
            thread = LONG_WORK if has_constraint else PREPARATION  # compiling may take a second
            await run_on(thread, _add_prompt, running, arguments, prompt)
    except BaseException:
        engine.end(running)
        raise
    return running


def _add_prompt(running: RunningRequest, arguments: GenerateArguments, prompt: Prompt) -> None:
    """Resolve a prompt's request, and create its sequences."""
    lm = running.engine.lm
    if not isinstance(prompt, str):
        check_ids("prompt", prompt, lm.model.config.vocab_size)
    resolved = lm.request(prompt, _DEFAULTS, **arguments)
    numbered = replace(resolved, index=len(running.all_sequences))
    running.sequences.append(start_sequences(lm.model, numbered))


async def respond(running: RunningRequest, reply: AnyReply) -> bytes:
    """Run a request to its end and return the response's JSON."""
    try:
        async for _ in running.engine.updates(running, every_step=False):
            pass
        best = [await run_on(PREPARATION, join_continuations, group) for group in running.sequences]
    finally:
        running.engine.end(running)
    completions = [completion for first in best for completion in (first, *first.alternatives)]
    if reply.request.max_tokens == 0:
        completions = [without_new_text(completion) for completion in completions]
    choices = [
        await run_on(PREPARATION, lambda i, c: json_bytes(reply.choice(i, c)), i, c)
        for i, c in enumerate(completions)
    ]
    n_new = sum(len(completion.ids) for completion in completions)
    return reply.response(choices, running.n_prompt_tokens, n_new, completions[0].prompt_ids)


async def events(running: RunningRequest, reply: AnyReply) -> AsyncGenerator[bytes, None]:
    """Run a request and yield the server-sent events of its streams, several at a time."""
    sequences = running.all_sequences
    has_text = reply.request.max_tokens != 0
    try:
        started = set()
        async for updates in running.engine.updates(running):
            data = []
            for update in updates:
                if update.index not in started:  # now the prompt's log probabilities are known
                    started.add(update.index)
                    prompt = sequences[update.index].completion
                    data.append(await run_on(PREPARATION, reply.first_event, update.index, prompt))
                sent = update if has_text else without_new_text(update)
                data.append(event(reply.chunk(sent)))
            yield b"".join(data)
        n_new = sum(len(sequence.ids) for sequence in sequences) if has_text else 0
        usage = reply.usage_chunk(running.n_prompt_tokens, n_new)
        yield (event(usage) if usage else b"") + DONE
    finally:
        running.engine.end(running)
