"""What the commands share whose work goes on where it was interrupted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpt2np.cli.streams import notice
from gpt2np.errors import GPT2NPError


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise GPT2NPError, in terms of `out`, for an OSError about it or what is kept beside it."""
    try:
        yield
    except BrokenPipeError:
        raise  # of stderr
    except OSError as error:
        if error.filename is not None and not os.fsdecode(error.filename).startswith(str(out)):
            raise
        raise GPT2NPError(f"can't write {out}: {error.strerror}") from error


def tell_interrupted(kept: Path) -> int:
    """Say, after Ctrl-C, that the folder `kept` has what is done; returns the exit code."""
    if kept.exists():
        notice(f"interrupted; the same command goes on from what is kept in {kept}")
    return 130
