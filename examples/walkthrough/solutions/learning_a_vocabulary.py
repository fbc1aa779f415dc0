"""Solutions of the exercises in 2_learning_a_vocabulary.ipynb."""

from dataclasses import replace
from itertools import islice

from gpt2np import Tokenizer
from gpt2np.tokenizer.training import TrainedVocabulary


def count_tokens(trained: TrainedVocabulary, count: int, text: str) -> int:
    vocabulary = trained.vocabulary
    ranks = dict(islice(vocabulary.ranks.items(), count))
    return Tokenizer(replace(vocabulary, ranks=ranks)).count(text)


def min_merges(trained: TrainedVocabulary, text: str, goal: float) -> int | None:
    for count in range(len(trained.merges) + 1):
        if len(text) / count_tokens(trained, count, text) >= goal:
            return count
    return None


def intermediate_tokens(trained: TrainedVocabulary, text: str) -> set[str]:
    ids = set(Tokenizer(trained.vocabulary).encode(text))
    return {
        trained.tokens[number]
        for number in range(257, len(trained.tokens))
        if number not in ids
    }
