"""Download a model into the Hugging Face cache, for use without a network.

The command downloads only missing files. Of an interrupted download, complete
files are kept. Then the command checks the config, the vocabulary and the
headers of the weight files. The model's folder is printed to stdout, and
messages to stderr.
"""

import argparse
import json

from gpt2np.cli.output import print_stderr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="Hugging Face model ID, such as gpt2, or ID@REVISION; the files of a folder are only "
        "checked",
    )
    output = parser.add_argument_group("Output")
    json_help = "Print one JSON object: model, revision, commit, folder, files and size in bytes"
    output.add_argument("--json", action="store_true", help=json_help)


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
    folder, hub_id = source.path.absolute(), source.hub_id
    content = {
        "model": hub_id.repository if hub_id else source.name,
        "revision": hub_id.revision or "main" if hub_id else None,
        "commit": folder.name if hub_id else None,
        "folder": str(folder),
        "files": files,
        "bytes": size,
    }
    print(json.dumps(content, ensure_ascii=False) if args.json else folder, flush=True)
    return 0
