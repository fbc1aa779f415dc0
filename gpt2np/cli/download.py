"""Download a model into the Hugging Face cache, for use without a network.

The command downloads only missing files. Of an interrupted download, complete
files are kept. Then the command checks the config, the vocabulary and the
headers of the weight files. The model's folder is printed to stdout; its name
is the commit. Messages are printed to stderr.
"""

import argparse

from gpt2np.cli.output import print_stderr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="Hugging Face model ID, such as gpt2, or ID@REVISION; the files of a folder are only "
        "checked",
    )


def run(args: argparse.Namespace) -> int:
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.errors import ModelNotFoundError, counted
    from gpt2np.hub import find_model
    from gpt2np.hub.model_files import existing_in, missing_in
    from gpt2np.tokenizer import Tokenizer

    source = find_model(args.model)
    if missing := missing_in(source.path):
        raise ModelNotFoundError(
            f"{source.path} has no {', '.join(missing)}, which gpt2np needs; choose another MODEL"
        )
    read_checkpoint(source.path).validate()  # raises an error now, not when the model loads
    Tokenizer.load(source.path)
    files = existing_in(source.path)
    size = sum((source.path / name).stat().st_size for name in files)
    print_stderr(f"model: {source.name}, {counted(len(files), 'file')}, {size:,} bytes")
    print(source.path.absolute(), flush=True)
    return 0
