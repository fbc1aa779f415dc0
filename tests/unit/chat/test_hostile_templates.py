"""Chat templates from strangers: bounded time, memory and output, and one-line errors."""

import errno
import sys
import time

import pytest

from gpt2np import TokenizerError
from gpt2np.chat import ChatTemplate, template_worker
from gpt2np.limits import limits

MESSAGES = [{"role": "user", "content": "Hello"}]
LOOPS = "".join(f"{{% for a{i} in range(99999) %}}" for i in range(4)) + "{% endfor %}" * 4
NESTED = "".join(f"{{% for a{i} in [1] %}}" for i in range(50)) + "{% endfor %}" * 50
DOUBLING = "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}"


@pytest.fixture
def limit_seconds(monkeypatch):
    """Return a function that sets the time limit of templates."""

    def limit(seconds):
        monkeypatch.setenv("GPT2NP_MAX_TEMPLATE_SECONDS", str(seconds))
        limits.cache_clear()

    yield limit
    limits.cache_clear()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{{ 'a' * 2000000000 }}", "MemoryError"),
        ("{% set x = 'a' * 2000000000 %}", "MemoryError"),
        ("{{ 'a'|center(2000000000) }}", "MemoryError"),
        ("{{ 10 ** 1000000 }}", "Exceeds the limit"),
        ("{{ 10 ** (10 ** 9) }}", "more than 1 seconds"),
        pytest.param(LOOPS, "more than 1 seconds", marks=pytest.mark.slow),
        (NESTED, "too many statically nested blocks"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion|crashed"),
        (DOUBLING + "{% endfor %}", "MemoryError"),
        ("{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}", "exceeds 4,194,304 characters"),
        ("{{ raise_exception('a' * 10000000) }}", "refuses this conversation: aaa"),
    ],
)
def test_limits(source, told, limit_seconds):
    if told == "MemoryError" and sys.platform != "linux":
        pytest.skip("the system has no limit on memory")
    if "seconds" in told:
        limit_seconds(1)
    started = time.monotonic()
    with pytest.raises(Exception, match=told) as error:
        ChatTemplate(source, {}, "x").render(MESSAGES)
    assert len(str(error.value)) < 2100 and "\n" not in str(error.value)
    assert error.type.__module__ == "gpt2np.errors"
    assert time.monotonic() - started < 30


def test_after_a_limit_the_next_conversation_is_rendered(limit_seconds):
    many = "{% for a in messages %}" * 8 + "{% endfor %}" * 8 + "done"
    template = ChatTemplate(many, {}, "x")
    limit_seconds(1)
    with pytest.raises(TokenizerError, match="more than 1 seconds"):
        template.render(MESSAGES * 100)
    limit_seconds(30)
    assert template.render(MESSAGES) == "done"


def test_the_process_ends_with_the_template():
    template = ChatTemplate("a", {}, "x")
    process = template._process
    assert process.poll() is None
    del template
    assert process.poll() is not None


def test_an_operating_system_without_a_limit_on_memory(monkeypatch):
    resource = pytest.importorskip("resource")

    def setrlimit(*_):
        raise ValueError("current limit exceeds maximum limit")  # as on macOS

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    template_worker._limit_memory(1 << 20)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EINVAL])  # EINVAL: Windows
def test_a_process_that_has_ended(number, monkeypatch):
    template = ChatTemplate("a", {}, "x")

    def write(_):
        raise OSError(number, "closed")

    monkeypatch.setattr(template._process.stdin, "write", write, raising=False)
    with pytest.raises(TokenizerError, match="crashed"):
        template.render(MESSAGES)
    assert template.render(MESSAGES) == "a"
