"""Lines to texts and commands."""

import pytest

from gpt2np.chat.commands import read_input, without_fences


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (["a", "", "b"], ["a", "", "b"]),
        (["/set top_k 4"], ["/set top_k 4"]),
        (['"""', "a", "", "b", '"""', "c"], ["a\n\nb", "c"]),
        (['"""a', 'b"""'], ["a\nb"]),
        (['"""a"""'], ["a"]),
        (['""""""'], [""]),
        (['  """', "/quit", "\\", '"""'], ["/quit\n\\"]),
        (['"""', "a"], ["a"]),
        (['say """'], ['say """']),
    ],
)
def test_the_lines_between_fences_are_one_text(lines, texts):
    waiting = list(lines)
    found = []
    while (text := read_input(lambda _: waiting.pop(0) if waiting else None)) is not None:
        found.append(without_fences(text))
        assert text.startswith("/") == (lines[0] == "/set top_k 4")
    assert found == texts
