"""From requests to completions: all sequences in one batch, and beam searches one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from gpt2np.errors import GenerationInterrupted, errors_at
from gpt2np.generation.completion import Completion
from gpt2np.generation.request import Request
from gpt2np.generation.scheduler import Scheduler, drive
from gpt2np.generation.sequence import RunningSequence, start_sequences
from gpt2np.model import GPT2
from gpt2np.progress import progress_bar

_MAX_STARTED = 1000  # groups of sequences in memory, while they wait for an earlier group to end


def complete(
    model: GPT2, requests: Sequence[Request], progress: bool | None = None
) -> list[Completion]:
    """Return the best completion of each request. For `progress`, see `generate_batch`.

    Raises:
        GenerationInterrupted: Ctrl-C; `completions` holds the texts so far of all requests.
    """
    groups: list[list[RunningSequence]] = []
    n = len(requests)
    places = [f"prompt {i} of {n}: " if n > 1 else "" for i in range(1, n + 1)]
    try:
        for place, request in zip(places, requests, strict=True):
            with errors_at(place):
                groups.append(start(model, request))
        sequences = [*chain.from_iterable(groups)]
        progress = False if progress is None and n == 1 else progress
        with progress_bar(len(sequences), "generating", "text", progress) as bar:
            for ended in run_groups(model, ([sequence] for sequence in sequences)):
                bar.update(len(ended))
        for place, group in zip(places, groups, strict=True):
            for sequence in group:
                if sequence.error:
                    with errors_at(place):
                        raise sequence.error
        return [*map(join_continuations, groups)]
    except KeyboardInterrupt as error:
        groups += ([RunningSequence(request, model)] for request in requests[len(groups) :])
        for sequence in chain.from_iterable(groups):
            sequence.interrupt(error)
        raise GenerationInterrupted([*map(join_continuations, groups)]) from None


def start(model: GPT2, request: Request) -> list[RunningSequence]:
    """Return a request's sequences; those of a beam search have already ended."""
    if request.options.num_beams == 1:
        return start_sequences(model, request)
    from gpt2np.generation.beam_search import beam_sequences

    return beam_sequences(model, request)


def run_groups(
    model: GPT2, groups: Iterable[Sequence[RunningSequence]]
) -> Iterator[Sequence[RunningSequence]]:
    """Run groups of sequences in one batch; yield each group, in order, when it has ended.

    A group is read from `groups` when the batch has room, so that a generator can create it then.
    """
    scheduler, started = Scheduler(model), deque[Sequence[RunningSequence]]()

    def sequences() -> Iterator[RunningSequence | None]:
        for group in groups:
            started.append(group)
            yield from group
            while not scheduler.free or len(started) >= _MAX_STARTED:
                yield None

    for _ in drive(scheduler, sequences()):
        while started and all(sequence.finish_reason for sequence in started[0]):
            yield started.popleft()


def join_continuations(sequences: Sequence[RunningSequence]) -> Completion:
    """Return a prompt's first continuation, with the other continuations in `alternatives`."""
    first, *alternatives = (sequence.completion for sequence in sequences)
    return replace(first, alternatives=tuple(alternatives))
