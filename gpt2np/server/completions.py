"""From a request to its streams, then to a response or to events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.beam_search import beam_completion
from gpt2np.generation.callbacks import GenerateArguments
from gpt2np.generation.complete import pick_best, start_streams
from gpt2np.generation.options import TEXT_CONSTRAINTS, GenerationOptions
from gpt2np.generation.streaming import TextStream
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.limits import how_to_raise, limits
from gpt2np.server.engine import Engine, RunningRequest
from gpt2np.server.interventions import check_steered, hooks_of
from gpt2np.server.protocol import GenerationRequest, check_ids
from gpt2np.server.replies import AnyReply
from gpt2np.server.responses import DONE, event, json_bytes
from gpt2np.server.threads import BEAM_SEARCH, CHAT_TEMPLATES, CONSTRAINTS, prepare, run_on

_DEFAULTS = GenerationOptions(temperature=1, top_k=0)  # OpenAI's


async def start_request(
    engine: Engine,
    request: GenerationRequest,
    prompts: Sequence[Prompt | Callable[[], Prompt]],
) -> RunningRequest:
    """Take places in the queue, then encode the prompts and create the streams.

    A prompt may be a function that renders a chat template.

    Raises:
        QueueFullError: the queue is full. This is checked before any costly work.
    """
    arguments = request.arguments()
    is_greedy = request.temperature == 0 and not request.use_beam_search
    n_copies = (request.n or 1) if is_greedy and request.best_of is None else 1
    n_sequences = len(prompts) * n_copies * _n_per_prompt(arguments)
    _check_sizes(arguments)
    _check_logprobs(arguments, n_sequences, engine.lm.model.config.n_positions)
    if hooks := hooks_of(request.interventions or (), engine.lm.model.config):
        check_steered(arguments, n_sequences)
        arguments["interventions"] = hooks
    running = engine.start(n_sequences, is_steered=bool(hooks))
    if request.use_beam_search:
        processors: Any = arguments.get("logits_processor", ())
        arguments["logits_processor"] = [*processors, running.raise_if_cancelled]
    lm, vocab_size = engine.lm, engine.lm.model.config.vocab_size
    has_constraint = any(arguments.get(name) for name in TEXT_CONSTRAINTS)

    def create_streams(prompt: Prompt) -> None:
        if n_last := request.truncate_prompt_tokens:
            prompt = _truncate(lm, prompt, n_last)
        if not isinstance(prompt, str):
            check_ids("prompt", prompt, vocab_size)
        running.prompts.append(prompt)
        resolved = lm.request(prompt, _DEFAULTS, **arguments)
        running.n_prompt_tokens += len(resolved.ids)
        if request.use_beam_search:
            running.searches.append(partial(beam_completion, lm.model, resolved))
        else:
            for _ in range(n_copies):
                running.streams.append(
                    start_streams(lm.model, replace(resolved, index=len(running.all_streams)))
                )

    try:
        check_ids("allowed_token_ids", request.allowed_token_ids or (), vocab_size)
        for prompt in prompts:
            if running.error:
                raise running.error
            if callable(prompt):
                prompt = await run_on(CHAT_TEMPLATES, prompt)
            if has_constraint:  # it may take a second to compile
                await run_on(CONSTRAINTS, create_streams, prompt)
            else:
                await prepare(create_streams, prompt)
    except BaseException:
        engine.end(running)
        raise
    return running


def _n_per_prompt(arguments: GenerateArguments) -> int:
    names = ("num_return_sequences", "best_of", "num_beams")
    numbers: list[int] = [arguments.get(name) or 1 for name in names]  # type: ignore[misc]
    return max(numbers)


def _truncate(lm: LanguageModel, prompt: Prompt, n_last: int) -> Sequence[int]:
    """Return the last tokens of a prompt; -1 keeps as many as the context holds, as in vLLM."""
    ids = lm.encode_prompt(prompt) if isinstance(prompt, str) else prompt
    return ids[-(lm.model.config.n_positions if n_last == -1 else n_last) :]


def _check_sizes(arguments: GenerateArguments) -> None:
    """Check the lengths of lists, all of which take time in each decode step."""
    for name, value in arguments.items():
        entries = value if isinstance(value, (list, tuple, Mapping)) else [value]
        sizes = {
            "max_option_entries": len(entries),
            "max_option_characters": sum(len(x) for x in entries if isinstance(x, str)),
        }
        for limit_name, size in sizes.items():
            if size > (limit := getattr(limits(), limit_name)):
                unit = limit_name.rpartition("_")[2]
                raise InvalidArgumentError(
                    f"{name} has {size:,} {unit}, more than {limit:,}; give fewer, or "
                    f"{how_to_raise(limit_name)} for the server"
                )


def _check_logprobs(arguments: GenerateArguments, n_sequences: int, n_positions: int) -> None:
    """Check how many log probabilities a request can get."""
    n_numbers, most = 0, limits().max_response_logprobs
    n_new_top, n_prompt_top = arguments.get("logprobs"), arguments.get("prompt_logprobs")
    if (n_top := max(n_new_top or 0, n_prompt_top or 0)) > limits().max_top_logprobs:
        raise InvalidArgumentError(
            f"logprobs asks for {n_top} tokens at each position, more than "
            f"{limits().max_top_logprobs}; ask for fewer, or {how_to_raise('max_top_logprobs')} "
            "for the server"
        )
    if n_new_top is not None:
        n_tokens = min(arguments.get("max_new_tokens", n_positions), n_positions)
        n_numbers += n_sequences * n_tokens * (n_new_top + 1)
    if n_prompt_top is not None:
        n_numbers += n_sequences * n_positions * (n_prompt_top + 1)
    if n_numbers > most:
        raise InvalidArgumentError(
            f"logprobs and n ask for up to {n_numbers:,} log probabilities, more than {most:,}; "
            f"send several requests, or {how_to_raise('max_response_logprobs')} for the server"
        )


async def respond(running: RunningRequest, reply: AnyReply) -> bytes:
    """Run a request to its end and return the response's JSON."""
    try:
        async for _ in running.engine.updates(running, every_step=False):
            pass
        best = [await prepare(pick_best, streams) for streams in running.streams]
        for search in running.searches:
            best.append(await run_on(BEAM_SEARCH, search))
            running.engine.observe_beams(best[-1])
    finally:
        running.engine.end(running)
    completions = [completion for first in best for completion in (first, *first.alternatives)]
    choices = [
        await prepare(lambda i, c: json_bytes(reply.choice(i, c)), i, c)
        for i, c in enumerate(completions)
    ]
    return reply.response(choices, running.n_prompt_tokens, sum(len(c.ids) for c in completions))


async def events(running: RunningRequest, reply: AnyReply) -> AsyncGenerator[bytes, None]:
    """Run a request and yield the server-sent events of its streams, several at a time."""
    streams = running.all_streams
    try:
        started = set()
        async for updates in running.engine.updates(running):
            data = []
            for update in updates:
                if update.index not in started:  # now the prompt's log probabilities are known
                    started.add(update.index)
                    data.append(await prepare(_first_event, reply, streams[update.index]))
                data.append(event(reply.chunk(update)))
            yield b"".join(data)
        n_new = sum(len(stream.sequence.ids) for stream in streams)
        usage = reply.usage_chunk(running.n_prompt_tokens, n_new)
        yield (event(usage) if usage else b"") + DONE
    finally:
        running.engine.end(running)


def _first_event(reply: AnyReply, stream: TextStream) -> bytes:
    chunk = reply.first_chunk(stream.sequence.request.index, stream.completion)
    return event(chunk) if chunk else b""
