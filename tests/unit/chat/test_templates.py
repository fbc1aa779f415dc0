"""Chat templates that are damaged or fail: errors of one line."""

import pytest

from gpt2np import TokenizerError
from gpt2np.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hello"}]
NESTED = "".join(f"{{% for a{i} in [1] %}}" for i in range(50)) + "{% endfor %}" * 50


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% if %}", "x: the chat template is damaged: "),
        (NESTED, "too many statically nested blocks"),
        ("{{ 10 ** 1000000 }}", "Exceeds the limit"),
        ("{{ messages.x.y }}", "x: the chat template fails: "),
        ("{{ ''.__class__.__mro__ }}", "x: the chat template fails: .*unsafe"),
        ("{{ messages.append(1) }}", "x: the chat template fails: .*unsafe|not safely callable"),
        ("{{ raise_exception('a' * 10000) }}", "refuses this conversation: aaa"),
    ],
)
def test_a_template_that_fails_is_an_error_of_one_line(source, told):
    with pytest.raises(Exception, match=told) as error:
        ChatTemplate(source, {}, "x").render(MESSAGES)
    assert len(str(error.value)) < 2100 and "\n" not in str(error.value)
    assert error.type.__module__ == "gpt2np.errors"


def test_a_template_renders_again_after_an_error():
    template = ChatTemplate("{{ messages[1].content or messages.x.y }}", {}, "x")
    with pytest.raises(TokenizerError):
        template.render(MESSAGES)
    assert template.render(MESSAGES * 2) == "Hello"
