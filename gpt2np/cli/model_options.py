"""Options for the model, its dtype and threads; loading of a model or tokenizer."""

import argparse
from typing import TYPE_CHECKING

from gpt2np.cli.declared_options import add_option, add_options, given_options
from gpt2np.cli.output import print_stderr
from gpt2np.errors import InvalidArgumentError, ModelNotFoundError
from gpt2np.options import options_of
from gpt2np.runtime.options import MODEL_HELP, ModelOptions

if TYPE_CHECKING:
    from gpt2np.hub import ModelSource
    from gpt2np.language_model import LanguageModel
    from gpt2np.tokenizer import Tokenizer

MODEL_OR_DEFAULT = f"{MODEL_HELP} (default: {options_of(ModelOptions)['model'].default_text})"
"""Help of an optional MODEL."""


def add_model_arguments(parser: argparse.ArgumentParser, *performance: str) -> None:
    """Declare --model, --tokenizer and the group "Performance"."""
    add_options(parser, ModelOptions, ("model", "tokenizer"))
    add_performance_arguments(parser, *performance)


def add_performance_arguments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declare --threads and options of `ModelOptions` in the group "Performance"."""
    group = parser.add_argument_group("Performance")
    threads = "Maximum number of CPU cores to use (default: all)"
    group.add_argument("--threads", type=int, metavar="N", help=threads)
    processes = {"type": lambda text: int(text) if text.isdecimal() else text, "default": "auto"}
    for name in names:
        add_option(group, ModelOptions, name, **processes if name == "processes" else {})


def load_model(args: argparse.Namespace, *, may_fall_back: bool = True) -> "LanguageModel":
    """Load the model that the command line specifies, and print its name.

    Raises:
        ModelNotFoundError: the model is not available, and the bundled model may not replace it.
    """
    from gpt2np.hub import find_model
    from gpt2np.language_model import LanguageModel

    options = given_options(args, ModelOptions)
    ModelOptions(**options)  # raises an error for an invalid value
    if options.get("exact") and options.get("dtype") == "float32":
        message = "`exact` and `dtype=float32` contradict each other: exact results are float64"
        raise InvalidArgumentError(message)
    if not may_fall_back:
        _check_source(find_model(args.model))
    lm = LanguageModel.load(**options)
    print_stderr(f"model: {lm.name}")
    return lm


def _check_source(source: "ModelSource") -> "ModelSource":
    """Raise ModelNotFoundError if the bundled model replaces the default model."""
    if source.fallback_reason:
        raise ModelNotFoundError(f"{source.fallback_reason}; name a model, as in --model bundled")
    return source


def add_vocabulary_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --model for a command that needs a vocabulary but no weights."""
    text = f"Vocabulary file (tokenizer.json), or model whose vocabulary to use: {MODEL_OR_DEFAULT}"
    parser.add_argument("--model", "--tokenizer", metavar="MODEL", help=text)


def load_tokenizer(model: str | None) -> "tuple[Tokenizer, str]":
    """Load the tokenizer of `model`. Returns the tokenizer and a message that names its source."""
    from gpt2np.hub import find_vocabulary
    from gpt2np.tokenizer import Tokenizer

    source = _check_source(find_vocabulary(model))
    return Tokenizer.load(source.path), f"vocabulary: {source.name}"
