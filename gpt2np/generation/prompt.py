"""A prompt that several sequences start from, computed once."""

from collections.abc import Sequence

from gpt2np.generation.finite_logits import finite_logits
from gpt2np.generation.logprobs import TokenLogprob, text_logprobs
from gpt2np.generation.sequence import RunningSequence
from gpt2np.model import GPT2, KVCache


class SharedPrompt:
    """Keys and values of all ids of a prompt but the last, which each sequence computes itself.

    Attributes:
        users: how many sequences have not had their cache yet.
    """

    def __init__(self, ids: Sequence[int], users: int, top: int | None) -> None:
        self.users = users
        self._ids = ids
        self._top = top
        self._cache: KVCache | None = None
        self._logprobs: list[TokenLogprob] = []

    @property
    def begun(self) -> bool:
        """Whether it holds keys and values."""
        return self._cache is not None

    @property
    def length(self) -> int:
        """The number of the prompt's ids."""
        return len(self._ids)

    def give(self, model: GPT2, sequence: RunningSequence) -> None:
        """Put the prompt's keys, values and, if asked for, log probabilities in a sequence."""
        if self._cache is None:
            self._cache = model.new_cache()
            if self._top is not None:
                self._logprobs = text_logprobs(model, self._ids, self._top, self._cache)
            elif len(self._ids) > 1:
                finite_logits(model, [self._ids[:-1]], [self._cache], logits_indices=[])
        self.users -= 1
        sequence.cache = self._cache.copy() if self.users else self._cache
        sequence.prompt_logprobs = self._logprobs
        sequence.shared = None


def share_prompt(sequences: Sequence[RunningSequence]) -> None:
    """Let sequences of the same prompt compute it together."""
    first = sequences[0]
    top = first.options.prompt_logprobs
    if len(sequences) > 1 or top is not None:
        first.make_room()
        shared = SharedPrompt(first.prompt[first.start :], len(sequences), top)
        for sequence in sequences:
            sequence.make_room()
            sequence.shared = shared
