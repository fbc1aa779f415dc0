"""Each generation option, declared once, is in the library, command line, server and plugin."""

import argparse
import dataclasses
import inspect
import typing

import pytest
from helpers.paths import CHECKOUT

from gpt2np.cli import generate
from gpt2np.cli.declared_options import parser_flags
from gpt2np.cli.generation_options import _WITHOUT_FLAG
from gpt2np.generation import GenerationOptions, Options
from gpt2np.generation.options import ONE_TEXT_ONLY
from gpt2np.options import options_of

OPTIONS = options_of(GenerationOptions)


def test_the_typed_dict_has_the_options():
    given = typing.get_type_hints(Options)
    assert set(given) == {*OPTIONS, "stop_strings", "do_sample"}  # the aliases of transformers


def test_the_documentation():
    page = (CHECKOUT / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(GenerationOptions):
        assert f"\n`{field.name} = {field.default!r}`" in page
        assert f"    {field.name}: " in inspect.getdoc(GenerationOptions)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_line(name):
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    flags = parser_flags(parser)
    assert set(_WITHOUT_FLAG) == {"bad_words_ids", "draft"}
    if name == "bad_words_ids":
        assert name not in flags and "bad_words" in flags
        return
    [action] = [a for a in parser._actions if flags[name] in a.option_strings]
    assert action.help and action.default is None


@pytest.mark.parametrize("name", OPTIONS)
def test_the_server(name):
    protocol = pytest.importorskip("gpt2np.server.protocol")
    fields = {
        *protocol.CompletionRequest.model_fields,
        *(f"structured_outputs.{name}" for name in protocol.StructuredOutputs.model_fields),
    }
    json_name = OPTIONS[name].json_name or name
    if name in protocol._NOT_SERVED:
        assert json_name not in fields and protocol._NOT_SERVED[name]
        return
    assert json_name in fields
    if name in protocol._FIELDS:
        field = protocol.CompletionRequest.model_fields[json_name]
        assert field.description and field.description == protocol.describe(name)


def test_the_playground():
    protocol = pytest.importorskip("gpt2np.server.protocol")
    sampling = {name for name, o in OPTIONS.items() if o.group == "Sampling"} - {"seed"}
    assert sampling <= set(protocol.InspectRequest.model_fields)
    neutral = protocol.InspectRequest(prompt="a").sampling_options()
    assert neutral == GenerationOptions(temperature=1, top_k=0)


def test_the_plugin():
    pytest.importorskip("llm")
    from gpt2np.llm_plugin import GPT2NPModel

    expected = [name for name, o in OPTIONS.items() if o.group not in ONE_TEXT_ONLY]
    assert list(GPT2NPModel.Options.model_fields) == expected
    for name, field in GPT2NPModel.Options.model_fields.items():
        assert field.description.startswith(OPTIONS[name].help.partition("{")[0])
