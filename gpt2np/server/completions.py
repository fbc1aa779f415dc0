"""Requests in progress: from a request to streams, then to a response or to events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.callbacks import GenerateArguments
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.streaming import TextStream, pick_best
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.server.engine import Engine
from gpt2np.server.protocol import GenerationRequest
from gpt2np.server.replies import Reply
from gpt2np.server.responses import DONE, Json, event

_DEFAULTS = GenerationOptions(temperature=1, top_k=0)  # OpenAI's


@dataclass
class Job:
    """One request in progress.

    Attributes:
        engine: runs the model.
        prompts: the prompts, each a text or token ids.
        arguments: keyword arguments of `LanguageModel.generate`.
        n_copies: how often a choice is repeated: `n` if all n choices are the same, else 1.
        streams: the streams of each prompt; empty for a beam search.
    """

    engine: Engine
    prompts: Sequence[Prompt]
    arguments: GenerateArguments
    n_copies: int
    streams: list[list[TextStream]]

    @property
    def all_streams(self) -> list[TextStream]:
        """The streams of all prompts."""
        return [stream for group in self.streams for stream in group]

    @property
    def n_sequences(self) -> int:
        """Number of sequences that the job runs at a time."""
        names = ("num_return_sequences", "best_of", "num_beams")
        per_prompt: list[int] = [self.arguments.get(name) or 1 for name in names]  # type: ignore[misc]
        return len(self.prompts) * max(per_prompt)


async def start_job(engine: Engine, request: GenerationRequest, prompts: Sequence[Prompt]) -> Job:
    """Reserve places in the queue, encode the prompts and create the streams.

    Raises:
        QueueFullError: the queue is full. This is checked before any costly work.
        InvalidArgumentError, ContextLengthError: see `LanguageModel.generate`.
    """
    arguments = request.arguments()
    is_greedy = request.temperature == 0 and not request.use_beam_search
    n_copies = (request.n or 1) if is_greedy and request.best_of is None else 1
    job = Job(engine, prompts, arguments, n_copies, [])
    engine.reserve(job.n_sequences)
    try:
        keep = request.truncate_prompt_tokens
        await asyncio.to_thread(_start_streams, engine.lm, job, keep)
    except BaseException:
        engine.release(job.n_sequences)
        raise
    return job


def _start_streams(lm: LanguageModel, job: Job, keep: int | None) -> None:
    if keep is not None:
        job.prompts = [
            (lm.encode_prompt(prompt) if isinstance(prompt, str) else prompt)[-keep:]
            for prompt in job.prompts
        ]
    if not job.arguments.get("num_beams"):
        job.streams = [lm.streams(prompt, _DEFAULTS, **job.arguments) for prompt in job.prompts]


async def respond(job: Job, reply: Reply) -> Json:
    """Run a job to its end and return the response."""
    try:
        if job.streams:
            await job.engine.run(job.all_streams)
            best = list(map(pick_best, job.streams))
        else:
            best = [
                await asyncio.to_thread(job.engine.lm.generate, prompt, _DEFAULTS, **job.arguments)
                for prompt in job.prompts
            ]
    finally:
        job.engine.release(job.n_sequences)
    completions = [
        completion for first in best for completion in [first, *first.alternatives] * job.n_copies
    ]
    return reply.response(completions, n_prompt=sum(len(first.prompt_ids) for first in best))


async def events(job: Job, reply: Reply) -> AsyncGenerator[bytes, None]:
    """Run a job and yield the server-sent events of its streams, several at a time.

    Raises:
        InvalidArgumentError: `best_of` exceeds `n`; only the end tells which choices are best.
    """
    streams = job.all_streams
    try:
        n = job.arguments.get("num_return_sequences", 1)
        if job.arguments.get("best_of", n) != n:
            raise InvalidArgumentError("best_of is not supported with stream; omit one of them")
        started = set()
        async for updates in job.engine.updates(streams):
            chunks = []
            for update in updates:
                if update.index not in started:  # now the prompt's log probabilities are known
                    started.add(update.index)
                    completion = streams[update.index].completion
                    chunks += reply.first_chunks(update.index, completion, job.n_copies)
                chunks += reply.chunks(update, job.n_copies)
            yield b"".join(map(event, chunks))
        n_new = sum(len(stream.sequence.ids) for stream in streams) * job.n_copies
        n_prompt = sum(len(group[0].sequence.prompt) for group in job.streams)
        yield b"".join(map(event, reply.last_chunks(n_prompt, n_new))) + DONE
    finally:
        job.engine.release(job.n_sequences)
