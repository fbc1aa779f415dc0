"""Multiple choice: file layouts and the three accuracies."""

import pytest

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.multiple_choice import Question, multiple_choice, read_question

HELLASWAG = {
    "activity_label": "Baking",
    "ctx_a": "A man [step] mixes  dough.",
    "ctx_b": "he then",
    "ctx": "unused",
    "endings": ["So [title] Bakes it.", " sings [substeps] loudly."],
    "label": "1",
}
ARC = {
    "question": "What shines?",
    "choices": {"text": ["The sun", "A stone"], "label": ["A", "B"]},
    "answerKey": "B",
}
ARC_ALLEN = {
    "question": {
        "stem": "What shines?",
        "choices": [{"text": "The sun", "label": "1"}, {"text": "A stone", "label": "2"}],
    },
    "answerKey": "1",
}
PIQA = {"goal": "To sleep", "sol1": "Lie down.", "sol2": "Stand up.", "label": 0}
PLAIN = {"context": "The fox", "choices": ["ran.", "flew.", "sang."], "answer": 2}


class TestReadQuestion:
    @pytest.mark.parametrize(
        ("record", "context", "texts", "answer"),
        [
            (PLAIN, "The fox", ("ran.", "flew.", "sang."), 2),
            (
                HELLASWAG,
                "Baking: A man mixes dough. He then",
                ("So. Bakes it.", "sings loudly."),
                1,
            ),
            (ARC, "Question: What shines?\nAnswer:", ("The sun", "A stone"), 1),
            (ARC_ALLEN, "Question: What shines?\nAnswer:", ("The sun", "A stone"), 0),
            (PIQA, "Question: To sleep\nAnswer:", ("Lie down.", "Stand up."), 0),
        ],
    )
    def test_layouts(self, record, context, texts, answer):
        question = read_question(record, "x")
        assert (question.context, question.choices, question.answer) == (context, texts, answer)

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            ({}, "not a question; expected the fields context, choices, answer"),
            (PLAIN | {"answer": 3}, "the answer is number 3, but there are 3 choices"),
            (PLAIN | {"answer": -1}, "the answer is number -1, but there are 3 choices"),
            (PLAIN | {"answer": "x"}, "a field is missing or invalid"),
            (PLAIN | {"answer": float("inf")}, "expected an integer, got inf"),  # 1e400
            (PLAIN | {"answer": 1.9}, "expected an integer, got 1.9"),
            (PLAIN | {"answer": True}, "expected an integer, got True"),
            (HELLASWAG | {"label": " 1"}, "expected an integer, got ' 1'"),
            (PIQA | {"label": False}, "expected an integer, got False"),
            (PIQA | {"label": "9" * 5000}, "expected an integer"),
            (PLAIN | {"choices": "abc"}, "expected a list, got 'abc'"),
            (PLAIN | {"choices": [1, 2, 3]}, "each choice must be strings"),
            (PLAIN | {"answer": 3}, "the answer is number 3, but there are 3 choices"),
            (PLAIN | {"choices": ["ran."], "answer": 0}, "a question needs two choices or more"),
            (PLAIN | {"context": None}, "the context and each choice must be strings"),
            (PLAIN | {"context": "The fox "}, "puts a space between the context and a choice"),
            (PLAIN | {"choices": ["a", " b", "c"]}, "puts a space between the context and a"),
            (PLAIN | {"context": "\ud800"}, "not valid Unicode: it has a lone surrogate"),
            (HELLASWAG | {"label": ""}, "a field is missing or invalid"),
            (HELLASWAG | {"ctx_b": None}, "a field is missing or invalid"),
            (ARC | {"answerKey": "E"}, "a field is missing or invalid"),
            (ARC | {"choices": None}, "a field is missing or invalid"),
            (ARC | {"question": {"stem": "?"}}, "a field is missing or invalid"),
            (PIQA | {"label": None}, "a field is missing or invalid"),
        ],
    )
    def test_what_is_no_question(self, record, message):
        with pytest.raises(InvalidArgumentError, match=f"a.jsonl, line 7: .*{message}"):
            read_question(record, "a.jsonl, line 7")


def test_the_three_accuracies(lm):
    questions = [
        Question("The fox ran into the", ("woods, and was seen no more.", "hole."), 0),
        Question("The king and the", ("zebra", "“queen” of the land", "queen"), 1),
        Question("", ("Once upon a time", "xx"), 0),
        Question("He went", ("home", "häüß"), 1),
        Question("He went", ("", "home"), 1),
    ]
    right = [0, 0, 0]
    for question in questions:
        context = (
            [lm.bos_token_id] if not question.context else lm.tokenizer.encode(question.context)
        )
        sums = []
        for choice in question.choices:
            ids = [*context, *lm.tokenizer.encode(f" {choice}")]
            sums.append(lm.score(ids, from_end_of_text=False).logprobs[len(context) :].sum())
        lengths = [
            [1] * len(sums),
            [len(choice) for choice in question.choices],
            [len(choice.encode()) for choice in question.choices],
        ]
        for i, counts in enumerate(lengths):
            rates = [s / n if n else -1e9 for s, n in zip(sums, counts, strict=True)]
            right[i] += rates.index(max(rates)) == question.answer
    calls = []
    result = multiple_choice(lm, questions, lambda *call: calls.append(call))
    assert [result.correct, result.correct_by_characters, result.correct_by_bytes] == right
    assert right[0] != right[1]
    assert (result.acc, result.acc_norm, result.acc_bytes) == tuple(n / 5 for n in right)
    assert [call[:2] for call in calls] == [(i, 5) for i in range(1, 6)]
    assert calls[-1][2] == {"acc": result.acc, "acc_norm": result.acc_norm}


def test_of_equal_choices_the_first_counts(lm):
    assert multiple_choice(lm, [Question("He", ("went", "went"), 0)]).acc == 1
    assert multiple_choice(lm, [Question("He", ("went", "went"), 1)]).acc == 0


def test_no_questions(lm):
    with pytest.raises(InvalidArgumentError, match="there are no questions"):
        multiple_choice(lm, [])
    with pytest.raises(InvalidArgumentError, match=r"^question 2: the answer is number 2, but"):
        multiple_choice(lm, [Question("He", ("went", "ran"), n) for n in (1, 2)])
