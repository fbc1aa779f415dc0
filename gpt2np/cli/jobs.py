"""Files, cluster and progress of the commands that run a job over many texts."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.declared_options import add_option, add_options, given_options
from gpt2np.cli.output import print_stderr
from gpt2np.cli.parser import spelled
from gpt2np.cli.text_input import spool_stdin
from gpt2np.data.resumable import JobCallbacks, partial_folder
from gpt2np.distributed.cluster import Cluster
from gpt2np.errors import InvalidArgumentError, counted
from gpt2np.runtime.options import ModelOptions

if TYPE_CHECKING:
    from gpt2np.distributed.jobs import ModelArguments
    from gpt2np.language_model import LanguageModel


def add_files_argument(parser: argparse.ArgumentParser, name: str, metavar: str) -> None:
    """Declare the files of a corpus; `spool_stdin` reads -."""
    text = "Files, folders or patterns to read, or '-' to read text from standard input"
    parser.add_argument(name, nargs="+", metavar=metavar, help=text)


def corpus_files(paths: Iterable[str], written: Sequence[Path] = ()) -> list[Path]:
    """Return the files of a corpus, except those that the command writes."""
    from gpt2np.data.corpus import find_files

    return find_files(map(spool_stdin, paths), written, print_stderr)


def add_rows_arguments(group: Any, *, required: bool) -> None:
    """Declare --out, a file of rows, and --force."""
    out = "File to write, with one row per result: .jsonl, .csv or .parquet"
    group.add_argument("--out", type=Path, required=required, metavar="FILE", help=out)
    force = "Overwrite the --out file; discard unfinished results if input or options have changed"
    group.add_argument("--force", action="store_true", help=force)


def add_ray_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a job that can run on a Ray cluster."""
    group = parser.add_argument_group("Ray")
    add_option(group, Cluster, "address", nargs="?", const="")
    add_options(group, Cluster, ("workers", "cpus_per_worker"))


def ray_cluster(args: argparse.Namespace) -> Cluster | None:
    """Return the cluster of --ray, --workers and --cpus-per-worker; None without --ray."""
    given = given_options(args, Cluster)
    if args.address is None:
        for name in given:
            raise InvalidArgumentError(f"{name} needs --ray", param=name)
        return None
    cluster = Cluster(**given | {"address": args.address or None})
    cluster.connect()
    return cluster


def model_source(args: argparse.Namespace, lm: "LanguageModel") -> "ModelArguments":
    """Return what the workers of a cluster need to load the model `lm`, which `args` specify."""
    from gpt2np.distributed.jobs import ModelArguments
    from gpt2np.language_model import language_model_fingerprint

    fingerprint = language_model_fingerprint(lm)
    options = given_options(args, ModelOptions) | {"draft": "auto", "processes": 1}
    return ModelArguments(ModelOptions(**options), fingerprint)


@contextlib.contextmanager
def running_job(
    out: Path | None, position: Callable[[int], object], **options: Any
) -> Iterator[JobCallbacks]:
    """Show a job's progress as a tqdm bar, or a line each minute; Ctrl-C exits with code 130.

    `position` writes how far the job is that writes `out`; `options` are tqdm's.
    """
    from tqdm import tqdm  # required by huggingface_hub

    is_terminal = sys.stderr.isatty()
    options |= {} if is_terminal else {"mininterval": 60.0, "delay": 60.0}  # seconds
    options |= {"disable": False, "leave": False}
    with exit_on_interrupt(out), tqdm(**options) as bar:

        def write(message: object) -> None:
            if is_terminal:
                bar.write(spelled(message), file=sys.stderr)
            else:
                print_stderr(spelled(message))

        def on_resume(done: int) -> None:
            write(f"resuming at {position(done)}")
            bar.initial = bar.n = done

        def on_progress(done: int, n_tokens: int) -> None:
            seconds = max(bar.format_dict["elapsed"], 1e-9)
            bar.set_postfix_str(f"{n_tokens / seconds:,.0f} tokens/s", refresh=False)
            bar.update(done - bar.n)

        yield JobCallbacks(
            on_resume,
            on_restart=lambda changes: write(f"discarding unfinished work: {'; '.join(changes)}"),
            on_progress=on_progress,
            on_skip=lambda problem: write(f"skipped: {problem}"),
        )


def running_corpus_job(
    files: Sequence[Path], out: Path | None, description: str
) -> contextlib.AbstractContextManager[JobCallbacks]:
    """Show a job that reads the bytes of `files`; see `running_job`."""
    from gpt2np.data.corpus import content_size

    total = sum(map(content_size, files))
    options = {"total": total, "desc": description, "unit": "B", "unit_scale": True}
    return running_job(out, lambda done: f"{done / total:.0%}", **options)


@contextlib.contextmanager
def exit_on_interrupt(out: Path | None) -> Iterator[None]:
    """After Ctrl-C, print whether the job that writes `out` can resume; exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        how = "go on" if out and partial_folder(out).exists() else "start over"
        print_stderr(f"interrupted; run the same command again to {how}")
        sys.exit(130)


def report_rows(out: Path | None, written: tuple[int, str], skipped: tuple[int, str]) -> int:
    """Print how many rows are in `out` and how many were skipped; return the exit code.

    Each argument is a number and the noun to count. The exit code is 1 if anything was skipped.
    """
    parts = [f"{counted(*written)} in {out}"] if out else []
    parts += [f"{counted(*skipped)} skipped"] if skipped[0] else []
    if parts:
        print_stderr(", ".join(parts))
    return 1 if skipped[0] else 0
