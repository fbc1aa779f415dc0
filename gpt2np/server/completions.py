"""From a request to its streams, then to a response or to events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.callbacks import GenerateArguments
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.streaming import Completion, pick_best
from gpt2np.language_model import Prompt
from gpt2np.limits import how_to_raise, limits
from gpt2np.server.engine import Engine, Job
from gpt2np.server.protocol import GenerationRequest, check_ids
from gpt2np.server.replies import Reply
from gpt2np.server.responses import DONE, Json, event

_DEFAULTS = GenerationOptions(temperature=1, top_k=0)  # OpenAI's


async def start_job(
    engine: Engine,
    request: GenerationRequest,
    n_prompts: int,
    get_prompts: Callable[[], Sequence[Prompt]],
) -> Job:
    """Take places in the queue, then encode the prompts and create the streams.

    `get_prompts` is called in another thread.

    Raises:
        QueueFullError: the queue is full. This is checked before any costly work.
        InvalidArgumentError, ContextLengthError: see `LanguageModel.generate`.
    """
    arguments = request.arguments()
    is_greedy = request.temperature == 0 and not request.use_beam_search
    n_copies = (request.n or 1) if is_greedy and request.best_of is None else 1
    names = ("num_return_sequences", "best_of", "num_beams")
    per_prompt: list[int] = [arguments.get(name) or 1 for name in names]  # type: ignore[misc]
    n_sequences = n_prompts * n_copies * max(per_prompt)
    _check_logprobs(arguments, n_sequences, engine.lm.model.config.n_positions)
    job = engine.start(n_sequences)

    def create_streams() -> None:
        lm, vocab_size = engine.lm, engine.lm.model.config.vocab_size
        check_ids("allowed_token_ids", request.allowed_token_ids or (), vocab_size)
        for prompt in get_prompts():
            if request.truncate_prompt_tokens:
                ids = lm.encode_prompt(prompt) if isinstance(prompt, str) else prompt
                prompt = ids[-request.truncate_prompt_tokens :]
            if not isinstance(prompt, str):
                check_ids("prompt", prompt, vocab_size)
            job.prompts.append(prompt)
            if request.use_beam_search:
                job.searches.append(_beam_search(job, prompt, arguments))
                continue
            new = [lm.streams(prompt, _DEFAULTS, **arguments) for _ in range(n_copies)]
            job.n_prompt_tokens += len(new[0][0].sequence.prompt)
            job.streams += new

    try:
        await asyncio.to_thread(create_streams)
    except BaseException:
        engine.end(job)
        raise
    return job


def _check_logprobs(arguments: GenerateArguments, n_sequences: int, n_positions: int) -> None:
    """Check how many log probabilities a request can get.

    Raises:
        InvalidArgumentError: more than `Limits.max_response_logprobs`.
    """
    n_numbers, most = 0, limits().max_response_logprobs
    if (n_top := arguments.get("logprobs")) is not None:
        n_tokens = min(arguments.get("max_new_tokens", n_positions), n_positions)
        n_numbers += n_sequences * n_tokens * (n_top + 1)
    if (n_top := arguments.get("prompt_logprobs")) is not None:
        n_numbers += n_sequences * n_positions * (n_top + 1)
    if n_numbers > most:
        raise InvalidArgumentError(
            f"logprobs and n ask for up to {n_numbers:,} log probabilities, more than {most:,}; "
            f"send several requests, or {how_to_raise('max_response_logprobs')} for the server"
        )


def _beam_search(
    job: Job, prompt: Prompt, arguments: GenerateArguments
) -> Callable[[], Completion]:
    """Return a function that runs a beam search, until the job is cancelled."""
    processors: Any = arguments.get("logits_processor", ())
    arguments = {**arguments, "logits_processor": [*processors, job.raise_if_cancelled]}
    return partial(job.engine.lm.generate, prompt, _DEFAULTS, **arguments)


async def respond(job: Job, reply: Reply) -> Json:
    """Run a job to its end and return the response."""
    try:
        async for _ in job.engine.updates(job, every_step=False):
            pass
        best = [pick_best(streams) for streams in job.streams]
        for search in job.searches:
            best.append(await asyncio.to_thread(search))
            job.n_prompt_tokens += len(best[-1].prompt_ids)
            job.engine.observe_beams(best[-1])
    finally:
        job.engine.end(job)
    completions = [completion for first in best for completion in (first, *first.alternatives)]
    return reply.response(completions, job.n_prompt_tokens)


async def events(job: Job, reply: Reply) -> AsyncGenerator[bytes, None]:
    """Run a job and yield the server-sent events of its streams, several at a time."""
    streams = job.all_streams
    try:
        started = set()
        async for updates in job.engine.updates(job):
            chunks = []
            for update in updates:
                if update.index not in started:  # now the prompt's log probabilities are known
                    started.add(update.index)
                    chunks += reply.first_chunks(update.index, streams[update.index].completion)
                chunks += reply.chunks(update)
            yield b"".join(map(event, chunks))
        n_new = sum(len(stream.sequence.ids) for stream in streams)
        yield b"".join(map(event, reply.last_chunks(job.n_prompt_tokens, n_new))) + DONE
    finally:
        job.engine.end(job)
