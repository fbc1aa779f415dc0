"""From a request to its sequences, then to a response or to events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.callbacks import GenerateArguments
from gpt2np.generation.complete import join_continuations
from gpt2np.generation.options import TEXT_CONSTRAINTS, GenerationOptions
from gpt2np.generation.sequence import RunningSequence, start_sequences
from gpt2np.language_model import Prompt
from gpt2np.runtime.arguments import check_ids
from gpt2np.server.engine import LONG_WORK, PREPARATION, Engine, RunningRequest, run_on
from gpt2np.server.protocol import GenerationRequest, hooks_of
from gpt2np.server.replies import DONE, AnyReply, event, json_bytes, without_new_text

_MAX_LOGPROBS = 2_000_000  # in all choices together, if they fill the context
_DEFAULTS = GenerationOptions(temperature=1, top_k=0)  # OpenAI's


async def start_request(
    engine: Engine,
    request: GenerationRequest,
    prompts: Sequence[Prompt | Callable[[], Prompt]],
) -> RunningRequest:
    """Take places in the queue, then encode the prompts and create the sequences.

    A prompt may be a function that renders a chat template.

    Raises:
        UnavailableError: the queue is full. This is checked before any costly work.
    """
    arguments, config = request.arguments(), engine.lm.model.config
    n_sequences = len(prompts) * (request.n or 1)
    options: Any = arguments
    per_token = max(1 + options.get(name, -1) for name in ("logprobs", "prompt_logprobs"))
    if n_sequences * config.n_positions * per_token > _MAX_LOGPROBS:
        message = f"logprobs and n ask for more than {_MAX_LOGPROBS:,} log probabilities"
        raise InvalidArgumentError(f"{message}; send several requests", param="logprobs")
    if hooks := hooks_of(request.interventions or (), config):
        arguments["interventions"] = hooks
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
    running.prompts.append(numbered)
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
                    sequence = sequences[update.index]
                    data.append(await run_on(PREPARATION, _first_event, reply, sequence))
                sent = update if has_text else without_new_text(update)
                data.append(event(reply.chunk(sent)))
            yield b"".join(data)
        n_new = sum(len(sequence.ids) for sequence in sequences) if has_text else 0
        usage = reply.usage_chunk(running.n_prompt_tokens, n_new)
        yield (event(usage) if usage else b"") + DONE
    finally:
        running.engine.end(running)


def _first_event(reply: AnyReply, sequence: RunningSequence) -> bytes:
    chunk = reply.first_chunk(sequence.request.index, sequence.completion)
    return event(chunk) if chunk else b""
