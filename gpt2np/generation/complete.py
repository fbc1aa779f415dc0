"""From requests to completions: all sequences in one batch, and beam searches one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpt2np.errors import BatchError, GenerationInterrupted, InvalidArgumentError, errors_at
from gpt2np.generation.request import Request
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import share_prefix
from gpt2np.generation.streaming import Completion, TextStream
from gpt2np.model import GPT2
from gpt2np.progress import progress_bar

_Result = Completion | list[TextStream]  # what `start` returns
_MAX_STARTED = 1000  # groups of streams in memory, while they wait for an earlier group to end


def complete(
    model: GPT2, requests: Sequence[Request], progress: bool | None = None
) -> list[Completion]:
    """Return the best completion of each request. `progress` is that of `generate_batch`.

    Raises:
        BatchError: one of several requests has failed; `completions` holds the results of all.
        GenerationInterrupted: Ctrl-C; `completions` holds the texts so far of all requests.
    """
    results: list[_Result] = []
    try:
        for i, request in enumerate(requests, 1):
            with errors_at(f"prompt {i} of {len(requests)}: " if len(requests) > 1 else ""):
                results.append(start(model, request))
        streams = _streams(results)
        progress = False if progress is None and len(requests) == 1 else progress
        with progress_bar(len(streams), "generating", "text", progress) as bar:
            for ended in run_streams(model, ([stream] for stream in streams)):
                bar.update(len(ended))
        raise_error(streams)
    except KeyboardInterrupt:
        results += [
            Completion.of(request, text="", ids=[], finish_reason="cancelled", seconds=0.0)
            for request in requests[len(results) :]
        ]
        for stream in _streams(results):
            stream.cancel()
        raise GenerationInterrupted(_completions(results)) from None
    except Exception as error:
        failed = [any(s.sequence.error for s in _streams([result])) for result in results]
        if len(requests) == 1 or not any(failed):
            raise
        raise BatchError(
            f"prompt {1 + failed.index(True)} of {len(requests)}: {error}", _completions(results)
        ) from error
    return _completions(results)


def start(model: GPT2, request: Request) -> Completion | list[TextStream]:
    """Run a request's beam search and return its completion; else return the request's streams."""
    if request.options.num_beams == 1:
        return start_streams(model, request)
    from gpt2np.generation.beam_search import beam_completion

    return beam_completion(model, request)


def start_streams(model: GPT2, request: Request) -> list[TextStream]:
    """Return one stream per continuation of a request; the prompt is computed once for all."""
    if request.options.num_beams > 1:
        raise InvalidArgumentError(
            "{num_beams} is {num_beams.value}: beam search cannot stream its text; call generate",
            num_beams=request.options.num_beams,
        )
    streams = [TextStream(continuation, model) for continuation in request.continuations()]
    share_prefix([stream.sequence for stream in streams])
    return streams


def run_streams(
    model: GPT2, groups: Iterable[Sequence[TextStream]]
) -> Iterator[Sequence[TextStream]]:
    """Run groups of streams in one batch; yield each group, in order, when its streams have ended.

    A group is read from `groups` when the batch has room, so that a generator can create it then.
    """
    scheduler, started = Scheduler(model), deque[Sequence[TextStream]]()
    remaining = iter(groups)
    has_more = True
    while has_more or started:
        while has_more and scheduler.free and len(started) < _MAX_STARTED:
            group = next(remaining, None)
            has_more = group is not None
            if group is not None:
                started.append(group)
                for stream in group:
                    scheduler.add(stream.sequence)
        while started and not any(stream.running for stream in started[0]):
            yield started.popleft()
        if scheduler.busy:
            scheduler.step()


def raise_error(streams: Sequence[TextStream]) -> None:
    """Raise the error that has ended a stream, if any."""
    for stream in streams:
        if stream.sequence.error:
            raise stream.sequence.error


def pick_best(streams: Sequence[TextStream]) -> Completion:
    """Return a prompt's first continuation, with the next continuations in `alternatives`.

    With `best_of`, continuations are sorted by mean log probability, highest first; ties keep the
    order of `streams`. A stream cancelled before the first token comes last.
    """
    options = streams[0].sequence.request.options
    if options.best_of is not None:
        streams = sorted(streams, key=lambda stream: stream.sequence.mean_logprob, reverse=True)
    first, *alternatives = (stream.completion for stream in streams[: options.num_return_sequences])
    return replace(first, alternatives=tuple(alternatives))


def _streams(results: Sequence[_Result]) -> list[TextStream]:
    return [stream for result in results if isinstance(result, list) for stream in result]


def _completions(results: list[_Result]) -> list[Completion]:
    return [result if isinstance(result, Completion) else pick_best(result) for result in results]
