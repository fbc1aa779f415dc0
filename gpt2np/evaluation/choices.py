"""Multiple choice: the answer that is likeliest to follow on the question.

By the sum of its log probabilities (lm-evaluation-harness's acc), by the sum divided by its length
in characters (the harness's acc_norm), or in bytes (acc_bytes).

A file's line is {"context": …, "choices": [text, …], "answer": number from 0}, or a record of
HellaSwag, ARC or PIQA as these are published; then the context is worded as in the harness's tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.evaluation.progress import Progress, unwatched
from gpt2np.evaluation.requests import continuation_likelihoods
from gpt2np.language_model import LanguageModel


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        context: the text before an answer; a space is put between them.
        choices: the answers.
        answer: the number of the right one, from 0.
    """

    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Choices:
    """How many questions were answered rightly; the shares have the harness's names.

    Attributes:
        questions: how many there are.
        correct: by the sum of the log probabilities.
        correct_by_characters, correct_by_bytes: by the sum over the answer's length.
    """

    questions: int
    correct: int
    correct_by_characters: int
    correct_by_bytes: int

    @property
    def acc(self) -> float:
        """By the sum."""
        return self.correct / self.questions

    @property
    def acc_norm(self) -> float:
        """By the sum over the characters."""
        return self.correct_by_characters / self.questions

    @property
    def acc_bytes(self) -> float:
        """By the sum over the bytes."""
        return self.correct_by_bytes / self.questions


def choices(
    lm: LanguageModel, questions: Sequence[Question], progress: Progress = unwatched
) -> Choices:
    """The accuracies. `progress` is told the questions that are done, and acc and acc_norm so far.

    Raises:
        InvalidArgumentError: there are no questions, or a choice without tokens.
        ContextLengthError: a choice longer than the model's context.
    """
    if not questions:
        raise InvalidArgumentError("there are no questions; give a file that holds some")
    pairs = [(q.context, f" {choice}") for q in questions for choice in q.choices]
    scores = continuation_likelihoods(lm, pairs)
    right = [0, 0, 0]
    for done, question in enumerate(questions, 1):
        sums = [next(scores)[0] for _ in question.choices]
        characters = [len(choice) for choice in question.choices]
        sizes = [len(choice.encode()) for choice in question.choices]
        for i, lengths in enumerate([[1] * len(sums), characters, sizes]):
            right[i] += _likeliest(sums, lengths) == question.answer
        values = {"acc": right[0] / done, "acc_norm": right[1] / done}
        progress(done, len(questions), values)
    return Choices(len(questions), *right)


def _likeliest(sums: Sequence[float], lengths: Sequence[int]) -> int:
    """The first of those with the highest sum for its length; an empty one is never it."""
    rates = [s / n if n else float("-inf") for s, n in zip(sums, lengths, strict=True)]
    return rates.index(max(rates))


def read_question(record: dict[str, Any], where: str) -> Question:
    """The question of a record in one of the layouts that the module's docstring names.

    Raises:
        InvalidArgumentError: it has none of them, or its answer is none of the choices.
    """
    for reader, fields in _LAYOUTS.items():
        if all(field in record for field in fields):
            try:
                question = reader(record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InvalidArgumentError(
                    f"{where}: a field is missing or not what it should be ({short_repr(error)})"
                ) from error
            return _checked(question, where)
    known = "; ".join(", ".join(fields) for fields in _LAYOUTS.values())
    raise InvalidArgumentError(f"{where}: no question; it needs the fields {known}")


def _checked(question: Question, where: str) -> Question:
    texts = [question.context, *question.choices]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{where}: the context and each choice must be a text")
    if any("\ud800" <= char <= "\udfff" for text in texts for char in text):
        raise InvalidArgumentError(f"{where}: a lone surrogate is no text")
    if not 0 <= question.answer < len(question.choices):
        raise InvalidArgumentError(
            f"{where}: the answer is number {question.answer} of {len(question.choices)} choices, "
            "counted from 0"
        )
    return question


def _plain(record: dict[str, Any]) -> Question:
    return Question(record["context"], _texts(record["choices"]), _number(record["answer"]))


def _hellaswag(record: dict[str, Any]) -> Question:
    context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    endings = tuple(_without_markup(ending) for ending in _texts(record["endings"]))
    return Question(_without_markup(context), endings, _number(record["label"]))


def _without_markup(text: str) -> str:
    """Without what WikiHow's layout left in HellaSwag's texts, as [title]."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _arc(record: dict[str, Any]) -> Question:
    asked = record["question"]
    if isinstance(asked, dict):  # as in the authors' own files
        answers = asked["choices"]
        labels, texts = ([answer[key] for answer in answers] for key in ("label", "text"))
        asked = asked["stem"]
    else:  # as on the Hub
        labels, texts = (record["choices"][key] for key in ("label", "text"))
    answer = list(labels).index(record["answerKey"])
    return Question(f"Question: {asked}\nAnswer:", _texts(texts), answer)


def _piqa(record: dict[str, Any]) -> Question:
    context = f"Question: {record['goal']}\nAnswer:"
    return Question(context, (record["sol1"], record["sol2"]), _number(record["label"]))


def _number(value: Any) -> int:
    """A whole number, or one in decimal digits; TypeError for anything that is merely like one."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, found {short_repr(value)}")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    """The values of a list; TypeError for a text, which would be cut into characters."""
    if not isinstance(values, list):
        raise TypeError(f"expected a list, found {short_repr(values)}")
    return tuple(values)


_LAYOUTS: dict[Callable[[dict[str, Any]], Question], tuple[str, ...]] = {
    _plain: ("context", "choices", "answer"),
    _hellaswag: ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    _arc: ("question", "answerKey"),
    _piqa: ("goal", "sol1", "sol2", "label"),
}
