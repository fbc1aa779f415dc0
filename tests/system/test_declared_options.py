"""Each generation option, declared once, is in the library, command line, server and plugin."""

import argparse
import ast
import inspect
import re
from importlib import import_module

import pytest
from helpers.paths import CHECKOUT

from gpt2np.cli import generate
from gpt2np.cli.generation_options import _WITHOUT_FLAG
from gpt2np.cli.parser import FLAGS
from gpt2np.data.options import DatasetOptions, ScoreOptions
from gpt2np.distributed.cluster import Cluster
from gpt2np.generation.options import FILTERS, ONE_TEXT_ONLY, GenerationOptions
from gpt2np.language_model import LanguageModel
from gpt2np.options import options_of
from gpt2np.runtime.options import ModelOptions
from gpt2np.server.options import ServerOptions
from gpt2np.tokenizer.training import TrainingOptions
from gpt2np.training.options import TrainerOptions

OPTIONS = options_of(GenerationOptions)
COMMANDS = {
    "bench": (ModelOptions,),
    "encode": (DatasetOptions, Cluster),
    "batch": (ModelOptions, Cluster),
    "generate": (ModelOptions,),
    "score": (ScoreOptions, ModelOptions, Cluster),
    "serve": (ServerOptions, ModelOptions),
    "train": (TrainerOptions,),
    "train-tokenizer": (TrainingOptions,),
}
"""The further families of options, by command."""

NOT_IN_COMMAND = {
    ("bench", "exact"): "an exact pass is slow by design",
    ("bench", "model"): "a positional argument",
    ("bench", "tokenizer"): "a benchmark's prompt is in tokens",
    ("bench", "draft"): "a benchmark measures a model without draft tokens",
    ("score", "draft"): "scoring generates nothing",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_line(name):
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    assert set(_WITHOUT_FLAG) == {"bad_words_ids", "draft"}
    if name == "bad_words_ids":
        assert name not in FLAGS and "bad_words" in FLAGS
        return
    [action] = [a for a in parser._actions if FLAGS[name] in a.option_strings]
    assert action.help and action.default is None


def test_the_server_offers_or_refuses_each_sampling_option():
    protocol = pytest.importorskip("gpt2np.server.protocol")
    names = {protocol.JSON_NAMES[name] for name, o in OPTIONS.items() if o.group == "Sampling"}
    assert names <= {*protocol.GenerationRequest.model_fields, *protocol.REFUSED}


def test_the_playground_and_the_completions_take_or_refuse_each_filter():
    protocol = pytest.importorskip("gpt2np.server.protocol")
    sampling = {name for name, o in OPTIONS.items() if o.group == "Sampling"}
    assert sampling - {"seed", "typical_p"} <= set(protocol.InspectRequest.model_fields)
    assert set(FILTERS) <= {*protocol.GenerationRequest.model_fields, *protocol.REFUSED}
    neutral = protocol.InspectRequest(prompt="a").sampling_options()
    assert neutral == GenerationOptions(temperature=1, top_k=0)


def test_the_plugin():
    pytest.importorskip("llm")
    from gpt2np.llm_plugin import GPT2NPModel

    expected = [name for name, o in OPTIONS.items() if o.group not in ONE_TEXT_ONLY]
    assert list(GPT2NPModel.Options.model_fields) == expected
    for name, field in GPT2NPModel.Options.model_fields.items():
        assert field.description.startswith(OPTIONS[name].help.partition("{")[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_other_families_on_the_command_line(command):
    parser = argparse.ArgumentParser()
    import_module(f"gpt2np.cli.{command.replace('-', '_')}").add_arguments(parser)
    for declaration in COMMANDS[command]:
        for name, declared in options_of(declaration).items():
            if (command, name) in NOT_IN_COMMAND:
                continue
            [action] = [a for a in parser._actions if FLAGS[name] in a.option_strings]
            assert action.dest == name and set(declared.flags) <= {*action.option_strings}
            words = (action.help or "").split()
            assert words[0] == declared.help.split()[0]


def test_load_takes_the_model_options():
    parameters = set(inspect.signature(LanguageModel.load).parameters)
    assert parameters == options_of(ModelOptions).keys()


def test_no_library_module_knows_a_flag():
    """Flags are in declarations and in commands that the library starts, but in no message."""
    package = CHECKOUT / "gpt2np"
    found = []
    for file in package.rglob("*.py"):
        if file.is_relative_to(package / "cli"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        declared = {
            id(part)
            for node in ast.walk(tree)
            if (isinstance(node, ast.keyword) and node.arg == "flags")
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))  # docstrings
            for part in ast.walk(node)
        }
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            is_flag = isinstance(text, str) and re.search(r"(^|[\s({])--[a-z][\w-]*(?!:)", text)
            if is_flag and id(node) not in declared:
                found.append((file.relative_to(package).as_posix(), text))
    assert not found
