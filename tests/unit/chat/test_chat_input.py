"""Lines to texts and commands."""

import pytest

from gpt2np.chat.commands import ChatInput, read_input


def entries(*lines):
    """All entries, and for each line that was read whether it went on with one."""
    waiting, asked = list(lines), []

    def read_line(goes_on):
        asked.append(goes_on)
        return waiting.pop(0) if waiting else None

    found = []
    while (entry := read_input(read_line)) is not None:
        found.append(entry)
    return found, asked


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["a"], "a"),
        ([""], ""),
        (["a\\", "b"], "a\nb"),
        (["a\\", "b\\", ""], "a\nb\n"),
        (["a\\"], "a"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""a"""'], "a"),
        (['""""""'], ""),
        (['  """', "/quit", "\\", '"""'], "/quit\n\\"),
        (['"""', "a"], "a"),
        (["//quit"], "/quit"),
        (['say """'], 'say """'),
    ],
)
def test_texts(lines, text):
    found, asked = entries(*lines)
    assert found[0] == ChatInput(text)
    assert asked[0] is False and all(
        asked[1 : len(lines) - (lines[-1:] == [""] and len(lines) > 3)]
    )


def test_one_after_another():
    found, asked = entries("a", "/set top_k 4\\", "b\\", "c", '"""', '"""', "d")
    assert found == [
        ChatInput("a"),
        ChatInput("/set top_k 4\\", is_command=True),
        ChatInput("b\nc"),
        ChatInput(""),
        ChatInput("d"),
    ]
    assert asked == [False, False, False, True, False, True, False, False]
