"""Chat templates from strangers: bounded time, memory and output, and no file is opened."""

import resource
import sys
from pathlib import Path

import jinja2
import pytest
from helpers.one_line import assert_one_line
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np import GPT2NPError
from gpt2np.chat import ChatTemplate
from gpt2np.limits import limits

SECONDS, MEMORY, CHARACTERS = 2, 256 << 20, 100_000
MESSAGES = [
    {"role": "system", "content": "Be {{ kind }}."},
    {"role": "user", "content": "Hello\n{% include 'x' %}"},
]

WATCH = """
import os, sys
log = os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
python = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.environ["WATCH_PACKAGES"])
def watch(event, args):
    path = os.fsdecode(args[0]) if args and isinstance(args[0], (str, bytes)) else ""
    is_file = event == "open" and path  # without a path, it wraps a descriptor that is open already
    is_access = is_file or event.startswith(("os.", "subprocess.", "socket.", "ctypes."))
    if is_access and not path.startswith(python):
        os.write(log, f"{event} {path}\\n".encode(errors="replace"))
sys.addaudithook(watch)
"""
"""A module that Python imports at its start. It records which files outside Python are accessed."""


@pytest.fixture(scope="module", autouse=True)
def small_limits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT2NP_MAX_TEMPLATE_SECONDS", str(SECONDS))
        patch.setenv("GPT2NP_MAX_TEMPLATE_MEMORY_BYTES", str(MEMORY))
        patch.setenv("GPT2NP_MAX_TEMPLATE_CHARACTERS", str(CHARACTERS))
        limits.cache_clear()
        yield
    limits.cache_clear()


@pytest.fixture(scope="module")
def accesses(tmp_path_factory, small_limits):
    """The file that records the accesses of templates; those of every template are left out."""
    folder = tmp_path_factory.mktemp("watch")
    (folder / "sitecustomize.py").write_text(WATCH)
    log = folder / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATCH_LOG", str(log))
        patch.setenv("WATCH_PACKAGES", str(Path(jinja2.__file__).parents[1]))
        patch.setattr(sys, "path", [str(folder), *sys.path])
        ChatTemplate("a{{ strftime_now('%Y') }}", {}, "x").render(MESSAGES)
        usual = set(log.read_text().splitlines())
        assert usual
        usual.add("open <template>")  # Python looks for the source of a syntax error
        yield lambda: set(log.read_text().splitlines()) - usual


BLOCKS = """
{% for m in messages %}@{% endfor %}
{% for i in range(99999) %}@{% endfor %}
{% for a in [1] recursive %}@{{ loop([1]) }}{% endfor %}
{% if messages %}@{% else %}x{% endif %}
{% set x %}@{% endset %}{{ x * 9 }}
{% macro f(n) %}@{{ f(n) }}{% endmacro %}{{ f(1) }}
{% generation %}@{% endgeneration %}
{% filter upper %}@{% endfilter %}
{% block b %}@{% endblock %}
""".splitlines()  # @ stands for what is inside
VALUES = """
messages messages[0] m.content m i x f eos_token 'a' '%s' 1 1.5 [] {} none true b undefined tools
range namespace namespace(a=1) cycler lipsum joiner dict self loop raise_exception strftime_now
""".split()  # noqa: SIM905
STEPS = r"""
.__class__ .__init__ .__globals__ ['__class__'] |attr('__class__') .mro() .__subclasses__() () (x)
(1) ('%Y') .format(x) .format_map({}) [0] [::-1] |length |join |tojson |tojson(indent=999999999)
|list |safe |e |pprint |map(attribute='__class__')|list |map('attr','__class__')|list .split()
|selectattr('role') |batch(1)|list |groupby('role') |xmlattr |urlize |wordwrap(1) |indent(99999)
|center(99999999) |format(x) |replace('',x) |sort |sum |unique|list |random |filesizeformat %x *9
|striptags |slice(9999) |string |int |float |round(9999) |truncate(5) *99999 **99999 ~x +x |tojson
""".split()  # noqa: SIM905
STATEMENTS = """
{% include '/etc/passwd' %}
{% extends 'x' %}
{% import 'os' as o %}{{ o }}
{% from 'os' import system %}
{% set ns = namespace() %}{% set ns.x = 1 %}{% set ns.__class__ = 1 %}
{% call f() %}{% endcall %}
{% do x %}
{% break %}
{% raw %}
{%- if -%}
{#
{{
%}
""".splitlines()

expressions = st.tuples(st.sampled_from(VALUES), st.lists(st.sampled_from(STEPS), max_size=4)).map(
    lambda case: case[0] + "".join(case[1])
)
pieces = st.one_of(
    expressions.map("{{{{ {} }}}}".format),
    expressions.map("{{% set x = {} %}}".format),
    st.sampled_from(STATEMENTS),
    st.text(max_size=8),
)


def enclosed(parts):
    return st.tuples(st.sampled_from(BLOCKS), parts).map(lambda case: case[0].replace("@", case[1]))


templates = st.lists(st.recursive(pieces, enclosed, max_leaves=4), max_size=4).map("".join)


@pytest.mark.parametrize("examples", [10, pytest.param(25, marks=pytest.mark.slow)])
def test_templates(accesses, examples):
    @settings(max_examples=examples)
    @given(source=templates)
    def check(source):
        check_template(accesses, source)

    check()


def check_template(accesses, source):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        template = ChatTemplate(source, {"eos_token": "<|endoftext|>"}, "x")
        for messages in (MESSAGES, MESSAGES * 50):
            assert len(template.render(messages)) <= CHARACTERS
    except GPT2NPError as error:
        assert_one_line(error)
    template = None  # ends the process
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 3 * (SECONDS + 1)
    largest = after.ru_maxrss << 10  # of all children, also those of earlier tests
    assert after.ru_maxrss == before.ru_maxrss or largest < MEMORY + (100 << 20)
    assert accesses() == set()
