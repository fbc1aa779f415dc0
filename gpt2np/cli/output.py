"""Output of the commands: standard streams, messages, generated text; handling of Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from gpt2np.errors import counted

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from gpt2np.data.resumable import JobCallbacks
    from gpt2np.generation.streaming import TextStream
    from gpt2np.tokenizer.display import Style


_LOG_INTERVAL = 60.0  # seconds between two lines of progress in a log file


def prepare_streams() -> None:
    """Set stdout and stderr to UTF-8 and line feeds on every platform; replace closed streams.

    A byte of a path that is not UTF-8 is printed as `\\udcff`: in JSON, an escape from which Python
    reads the same path. A closed stdin or stderr becomes the null device. A closed stdout becomes a
    stream on which every write fails, because the result would be lost.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            stream = open(os.open(os.devnull, flags), mode, encoding="utf-8")  # noqa: SIM115, PTH123
            setattr(sys, name, stream)
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def discard_stdout() -> None:
    """Redirect stdout to the null device, so that Python's flush at exit cannot fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_stderr(text: str) -> None:
    """Print a message to stderr; ignore a failure to write it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def print_skipped(problem: object) -> None:
    """Report a file or document that is skipped."""
    print_stderr(f"skipped: {problem}")


@contextlib.contextmanager
def running_job(
    out: Path, position: Callable[[int], object], **options: Any
) -> Iterator[JobCallbacks]:
    """Show a job that writes `out` in a tqdm bar with `options`; Ctrl-C exits with code 130.

    `position` formats the progress. Without a terminal, the bar is a line each minute.
    """
    from tqdm import tqdm  # required by huggingface_hub

    from gpt2np.data.resumable import JobCallbacks, partial_folder

    is_terminal = sys.stderr.isatty()
    options |= {"disable": False, "mininterval": 0.1 if is_terminal else _LOG_INTERVAL}
    options |= {"leave": False, "delay": 0 if is_terminal else _LOG_INTERVAL}
    with exit_on_interrupt(partial_folder(out)), tqdm(**options) as bar:
        started = time.monotonic()

        def write(message: object) -> None:
            if is_terminal:
                bar.write(f"{message}", file=sys.stderr)
            else:
                print_stderr(f"{message}")

        def on_resume(done: int) -> None:
            write(f"resuming at {position(done)}")
            bar.initial = bar.n = done

        def on_progress(done: int, n_tokens: int) -> None:
            seconds = time.monotonic() - started
            speed = f"{n_tokens / seconds:,.0f} tokens/s" if seconds else ""
            bar.set_postfix_str(speed, refresh=False)
            bar.update(done - bar.n)

        yield JobCallbacks(
            on_resume,
            on_restart=lambda changes: write(f"discarding unfinished work: {'; '.join(changes)}"),
            on_progress=on_progress,
            on_skip=lambda problem: write(f"skipped: {problem}"),
        )


def running_corpus_job(
    out: Path, files: Sequence[Path], description: str
) -> contextlib.AbstractContextManager[JobCallbacks]:
    """Show a job that reads the bytes of `files`; see `running_job`."""
    total = sum(file.stat().st_size for file in files)
    options = {"total": total, "desc": description, "unit": "B", "unit_scale": True}
    return running_job(out, lambda done: f"{done / total:.0%}", **options)


def terminal_style() -> Style:
    """Return the style of text on stdout: with color at a terminal, unless NO_COLOR is set."""
    from gpt2np.tokenizer.display import Style

    return Style(color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


@contextlib.contextmanager
def exit_on_interrupt(folder: Path) -> Iterator[None]:
    """After Ctrl-C, print how to resume from the folder of unfinished work; exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        when, end = " before the first results", "start"
        if folder.exists():
            when, end = "", f"resume from {folder}"
        print_stderr(f"interrupted{when}; run the same command again to {end}")
        sys.exit(130)


def report_rows(out: Path, written: tuple[int, str], skipped: tuple[int, str]) -> int:
    """Print how many rows are in `out` and how many were skipped; return the exit code.

    Each argument is a number and the noun to count. The exit code is 1 if anything was skipped.
    """
    problems = f", {counted(*skipped)} skipped" if skipped[0] else ""
    print_stderr(f"{counted(*written)} in {out}{problems}")
    return 1 if skipped[0] else 0


def write_stream(stream: TextStream) -> None:
    """Generate a text, and write each piece to stdout immediately.

    Raises:
        KeyboardInterrupt: Ctrl-C canceled the stream; the text so far is written.
        InvalidArgumentError: the constraints exclude every next token; the text so far is written.
    """
    try:
        for piece in stream:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(stream.cancel(), end="", flush=True)
        raise
