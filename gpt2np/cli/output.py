"""Output of the commands: standard streams, messages, generated text; handling of Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from gpt2np.errors import counted
from gpt2np.interrupts import held_signals

TYPE_CHECKING = False  # importing typing takes longer than importing this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType
    from typing import Any, TextIO

    from tqdm import tqdm

    from gpt2np.data.corpus import TextPart
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


def print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning in one line. This function replaces `warnings.showwarning`."""
    print_stderr(f"warning: {message}")


@contextlib.contextmanager
def write_errors(path: Path, *, check_filename: bool = False) -> Iterator[None]:
    """Convert an OSError in the `with` block to a GPT2NPError that names `path`.

    With `check_filename`, a BrokenPipeError (from stderr) and errors about files whose paths do not
    start with `path` stay unchanged.
    """
    from gpt2np.errors import GPT2NPError, error_reason

    try:
        yield
    except OSError as error:
        name = "" if error.filename is None else os.fsdecode(error.filename)
        is_foreign = isinstance(error, BrokenPipeError) or (name and not name.startswith(str(path)))
        if check_filename and is_foreign:
            raise
        raise GPT2NPError(f"cannot write {path}: {error_reason(error)}") from error


def check_not_hidden(target: Path, names: Iterable[str]) -> None:
    """Raise InvalidArgumentError if the new folder `target` would hide a model of the same name.

    gpt2np prefers a folder to a model of the same name. So `target` must not be named "bundled", or
    like a model in `names`.
    """
    from gpt2np.errors import InvalidArgumentError

    for name in ("bundled", *names):
        if target.absolute() == target.cwd() / name:
            raise InvalidArgumentError(
                f"a folder {target} here would hide the model {name!r}; choose another name"
            )


@contextlib.contextmanager
def step_bar(total: int, width: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar of `total` steps.

    Yields a function that takes the name of the next step and advances the bar. `width` is the
    maximum length of a name.
    """
    layout = f"{{desc:<{width}}}{{bar:20}} {{n_fmt}} of {{total_fmt}}, {{elapsed}}"
    with progress(total=total, bar_format=layout) as bar:

        def start_step(name: str) -> None:
            bar.set_description(name, refresh=False)
            bar.n += 1
            bar.refresh()

        yield start_step


def progress(**options: Any) -> tqdm[Any]:
    """Show a progress bar at a terminal; `options` are those of tqdm."""
    from tqdm import tqdm  # required by huggingface_hub

    return tqdm(**{"leave": False, "disable": None, **options})


def with_character_bar(parts: Iterable[TextPart], description: str) -> Iterator[TextPart]:
    """Yield parts of documents, with a progress bar that counts their characters."""
    with progress(desc=description, unit=" characters", unit_scale=True, leave=True) as bar:
        for part in parts:
            yield part
            bar.update(len(part.text))


@contextlib.contextmanager
def running_job(
    out: Path, position: Callable[[int], object], **options: Any
) -> Iterator[JobCallbacks]:
    """Show a job that writes `out` in a tqdm bar with `options`; Ctrl-C exits with code 130.

    `position` formats the progress. Without a terminal, a line each minute replaces the bar.
    """
    from gpt2np.data.resumable import JobCallbacks, partial_folder

    with (
        write_errors(out, check_filename=True),
        exit_on_interrupt(partial_folder(out)),
        progress(**options) as bar,
    ):
        started = logged = time.monotonic()

        def write(message: object) -> None:
            bar.write(f"{message}", file=sys.stderr)

        def on_resume(done: int) -> None:
            write(f"resuming at {position(done)}")
            bar.initial = bar.n = done

        def on_progress(done: int, n_tokens: int) -> None:
            nonlocal logged
            now = time.monotonic()
            speed = f"{n_tokens / (now - started):,.0f} tokens/s" if now > started else ""
            if bar.disable and now - logged >= _LOG_INTERVAL:
                logged = now
                write(f"at {position(done)}, {speed}")
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


def handle_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt: the SIGINT handler of the commands.

    During an import, the exception could surface as another one, so the process exits at once.
    Python ignores exceptions of finalizers, so during one the handler calls itself again soon.
    """
    caller = frame
    while caller:
        if caller.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(130)
        if caller.f_globals.get("__name__") in ("weakref", "_weakrefset"):
            from _thread import interrupt_main
            from threading import Timer

            Timer(0.01, interrupt_main).start()
            return
        caller = caller.f_back
    signal.default_int_handler(number, frame)


def write_stream(stream: TextStream) -> None:
    """Generate a text, and write each step's text to stdout immediately.

    Ctrl-C never cuts a write in half. A second Ctrl-C does, because the reader may hang.

    Raises:
        KeyboardInterrupt: Ctrl-C canceled the stream; the text so far is written.
        InvalidArgumentError: the constraints exclude every next token; the text so far is written.
    """
    try:
        while stream.running:
            stream.step()
            _write_new_text(stream)
    except KeyboardInterrupt:
        stream.sequence.end("cancelled")
        _write_new_text(stream)
        raise
    if stream.sequence.error:
        raise stream.sequence.error


def _write_new_text(stream: TextStream) -> None:
    with held_signals([signal.SIGINT], may_hang=True):
        sys.stdout.write(stream.new_text())
        sys.stdout.flush()
