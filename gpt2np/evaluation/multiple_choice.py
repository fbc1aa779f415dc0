"""Multiple choice: select the answer that most probably follows the question.

Each line of a question file is {"context": …, "choices": [string, …], "answer": index from 0}, or a
record of HellaSwag, ARC or PIQA in the published layout. A record's context is built as in the task
of lm-evaluation-harness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpt2np.data.text import is_unicode_text
from gpt2np.errors import InvalidArgumentError, short_repr
from gpt2np.evaluation import ProgressCallback, Result, format_share, ignore_progress
from gpt2np.evaluation.loglikelihood import continuation_loglikelihoods
from gpt2np.language_model import LanguageModel

__all__ = ["MultipleChoice", "Question", "multiple_choice", "read_question"]


@dataclass(frozen=True)
class Question:
    """A multiple-choice question."""

    context: str  # a space joins context and answer
    choices: tuple[str, ...]
    answer: int  # index of the correct choice, from 0


@dataclass(frozen=True)
class MultipleChoice(Result):
    """Accuracies on multiple-choice questions, named as in lm-evaluation-harness.

    The fields `correct…` count correct answers; `acc…` are these counts ÷ `questions`.
    """

    questions: int
    correct: int  # if the answer is the choice with the highest log probability
    correct_by_characters: int  # with the highest log probability per character
    correct_by_bytes: int  # with the highest log probability per byte

    definition = "harness"
    JSON_FIELDS = ("definition", "questions", "acc", "acc_norm", "acc_bytes")

    @property
    def acc(self) -> float:
        """Share of correct answers, by log probability."""
        return self.correct / self.questions

    @property
    def acc_norm(self) -> float:
        """Share of correct answers, by log probability per character."""
        return self.correct_by_characters / self.questions

    @property
    def acc_bytes(self) -> float:
        """Share of correct answers, by log probability per byte."""
        return self.correct_by_bytes / self.questions

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("acc", format_share(self.correct, self.questions)),
            ("acc_norm", format_share(self.correct_by_characters, self.questions)),
            ("acc_bytes", format_share(self.correct_by_bytes, self.questions)),
        ]


def multiple_choice(
    lm: LanguageModel,
    questions: Sequence[Question],
    on_progress: ProgressCallback = ignore_progress,
) -> MultipleChoice:
    """Compute the accuracies of a model on multiple-choice questions.

    Raises:
        InvalidArgumentError: there are no questions, a question has no answer or fewer than two
            choices, or a choice has no tokens.
        ContextLengthError: a choice is longer than the model's context.
    """
    if not questions:
        raise InvalidArgumentError("there are no questions; give a file that is not empty")
    for number, question in enumerate(questions, 1):
        _check_question(question, f"question {number}")
    pairs = [(q.context, f" {choice}") for q in questions for choice in q.choices]
    scores = continuation_loglikelihoods(lm, pairs)
    correct = [0, 0, 0]
    for done, question in enumerate(questions, 1):
        sums = [next(scores)[0] for _ in question.choices]
        characters = [len(choice) for choice in question.choices]
        sizes = [len(choice.encode()) for choice in question.choices]
        for i, lengths in enumerate([[1] * len(sums), characters, sizes]):
            values = [s / n if n else float("-inf") for s, n in zip(sums, lengths, strict=True)]
            correct[i] += values.index(max(values)) == question.answer
        metrics = {"acc": correct[0] / done, "acc_norm": correct[1] / done}
        on_progress(done, len(questions), metrics)
    return MultipleChoice(len(questions), *correct)


def read_question(record: dict[str, Any], location: str) -> Question:
    """Convert a JSON record to a question: gpt2np's fields, or HellaSwag's, ARC's or PIQA's.

    `location`, the file and line of the record, appears in error messages.

    Raises:
        InvalidArgumentError: the layout is unknown, or a field is missing or invalid.
    """
    for reader, fields in _LAYOUTS.items():
        if all(field in record for field in fields):
            try:
                question = reader(record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InvalidArgumentError(
                    f"{location}: a field is missing or invalid ({short_repr(error)})"
                ) from error
            _check_question(question, location)
            if reader is _plain:
                _check_spaces(question, location)
            return question
    layouts = "; or ".join(", ".join(fields) for fields in _LAYOUTS.values())
    raise InvalidArgumentError(f"{location}: not a question; expected the fields {layouts}")


def _check_question(question: Question, location: str) -> None:
    texts = [question.context, *question.choices]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{location}: the context and each choice must be strings")
    if not all(map(is_unicode_text, texts)):
        raise InvalidArgumentError(
            f"{location}: the question is not valid Unicode: it has a lone surrogate"
        )
    if len(question.choices) < 2:
        raise InvalidArgumentError(f"{location}: a question needs two choices or more")
    if not 0 <= question.answer < len(question.choices):
        raise InvalidArgumentError(
            f"{location}: the answer is number {question.answer}, but there are "
            f"{len(question.choices)} choices, numbered from 0"
        )


def _check_spaces(question: Question, location: str) -> None:
    if question.context.endswith(" ") or any(c.startswith(" ") for c in question.choices):
        raise InvalidArgumentError(
            f"{location}: gpt2np puts a space between the context and a choice, so omit yours"
        )


def _plain(record: dict[str, Any]) -> Question:
    return Question(record["context"], _strings(record["choices"]), _integer(record["answer"]))


def _hellaswag(record: dict[str, Any]) -> Question:
    context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    endings = tuple(_without_markup(ending) for ending in _strings(record["endings"]))
    return Question(_without_markup(context), endings, _integer(record["label"]))


def _without_markup(text: str) -> str:
    """Remove the remains of WikiHow's layout in HellaSwag's texts, such as [title]."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _arc(record: dict[str, Any]) -> Question:
    question = record["question"]
    if isinstance(question, dict):  # layout of the files by ARC's authors
        choices = question["choices"]
        labels, texts = ([choice[key] for choice in choices] for key in ("label", "text"))
        question = question["stem"]
    else:  # layout of the files on the Hugging Face Hub
        labels, texts = (record["choices"][key] for key in ("label", "text"))
    answer = list(labels).index(record["answerKey"])
    return Question(f"Question: {question}\nAnswer:", _strings(texts), answer)


def _piqa(record: dict[str, Any]) -> Question:
    context = f"Question: {record['goal']}\nAnswer:"
    return Question(context, (record["sol1"], record["sol2"]), _integer(record["label"]))


def _integer(value: Any) -> int:
    """Convert an int or a string of digits to int. Raises TypeError for other values and bools."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected an integer, got {short_repr(value)}")
    return value


def _strings(values: Any) -> tuple[str, ...]:
    """Convert a list to a tuple. Raises TypeError for other values, such as a string."""
    if not isinstance(values, list):
        raise TypeError(f"expected a list, got {short_repr(values)}")
    return tuple(values)


_LAYOUTS: dict[Callable[[dict[str, Any]], Question], tuple[str, ...]] = {
    _plain: ("context", "choices", "answer"),
    _hellaswag: ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    _arc: ("question", "answerKey"),
    _piqa: ("goal", "sol1", "sol2", "label"),
}
