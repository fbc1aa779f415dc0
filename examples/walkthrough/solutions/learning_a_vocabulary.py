"""Solutions of the exercises in 2_learning_a_vocabulary.ipynb."""

from dataclasses import replace
from itertools import islice

from gpt2np import Tokenizer
from gpt2np.tokenizer.training import TrainedVocabulary


def tokens_after(trained: TrainedVocabulary, count: int, text: str) -> int:
    vocabulary = trained.vocabulary
    known = dict(islice(vocabulary.ranks.items(), count))
    return Tokenizer(replace(vocabulary, ranks=known)).count(text)


def merges_needed(trained: TrainedVocabulary, text: str, goal: float) -> int | None:
    for count in range(len(trained.merges) + 1):
        if len(text) / tokens_after(trained, count, text) >= goal:
            return count
    return None


def stepping_stones(trained: TrainedVocabulary, text: str) -> set[str]:
    ids = set(Tokenizer(trained.vocabulary).encode(text))
    return {
        trained.tokens[number]
        for number in range(257, len(trained.tokens))
        if number not in ids
    }
