"""Fetch a model for use without a network.

What gpt2np needs of MODEL is fetched into the Hugging Face cache, as far as it
is not there yet; weights that were fetched in part are continued. Config,
vocabulary and the headers of the weights are checked. The folder goes to
stdout, everything else to stderr.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.streams import notice

if TYPE_CHECKING:
    from gpt2np.hub import ModelSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a Hugging Face id (gpt2, distilgpt2, openai-community/gpt2-medium, ...), with "
        "@REVISION for a branch, tag or commit; or a folder or 'bundled', which need no download",
    )
    add("--json", action="store_true", help="print one JSON object: folder, commit, files, ...")


def run(args: argparse.Namespace) -> int:
    """Fetch and print; returns the exit code."""
    from gpt2np.errors import ModelNotFoundError
    from gpt2np.hub import MODEL_FILES, find_model

    source = find_model(args.model)
    if missing := MODEL_FILES.missing_in(source.folder):
        raise ModelNotFoundError(
            f"{source.folder} has no {', '.join(missing)}, without which gpt2np can't use it"
        )
    _check(source.folder)
    files = MODEL_FILES.existing_in(source.folder)
    size = sum((source.folder / name).stat().st_size for name in files)
    notice(f"model: {source.name}, {len(files)} files, {size:,} bytes")
    folder = source.folder.absolute()
    print(json.dumps(_as_json(source, folder, files, size)) if args.json else folder, flush=True)
    return 0


def _check(folder: Path) -> None:
    """Refuse, before somebody relies on it, what could not be loaded later."""
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.tokenizer import Tokenizer

    read_checkpoint(folder).validate()
    Tokenizer.load(folder)


def _as_json(source: "ModelSource", folder: Path, files: list[str], size: int) -> dict[str, object]:
    hub_id = source.hub_id
    return {
        "model": hub_id.repository if hub_id else source.name,
        "revision": hub_id.revision or "main" if hub_id else None,
        "commit": folder.name if hub_id else None,
        "folder": str(folder),
        "files": files,
        "bytes": size,
    }
