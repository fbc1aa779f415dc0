"""Lines to texts and commands."""

import pytest

from gpt2np.chat.commands import ChatInput, read_input


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (["a", "", "b"], ["a", "", "b"]),
        (["/set top_k 4"], [ChatInput("/set top_k 4", is_command=True)]),
        (['"""', "a", "", "b", '"""', "c"], ["a\n\nb", "c"]),
        (['"""a', 'b"""'], ["a\nb"]),
        (['"""a"""'], ["a"]),
        (['""""""'], [""]),
        (['  """', "/quit", "\\", '"""'], ["/quit\n\\"]),
        (['"""', "a"], ["a"]),
        (['say """'], ['say """']),
    ],
)
def test_read_input_joins_the_lines_between_fences_and_marks_commands(lines, texts):
    waiting = list(lines)
    found = []
    while (text := read_input(lambda _: waiting.pop(0) if waiting else None)) is not None:
        found.append(text)
    assert found == [ChatInput(text) if not isinstance(text, ChatInput) else text for text in texts]
