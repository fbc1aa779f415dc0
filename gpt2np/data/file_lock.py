"""A file that one process at a time can hold, whose hold ends with it, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO


def lock_file(path: Path) -> IO[bytes] | None:
    """Make and hold `path`; None if another process holds it. To close the file lets it go.

    The folder is made, too. On a file system that knows no locks, everyone gets the file.

    Raises:
        OSError: the file can't be made.
    """
    while True:
        path.parent.mkdir(exist_ok=True)
        try:
            file = path.open("ab")
        except FileNotFoundError:  # its folder has been removed in between
            continue
        if not _hold(file):
            file.close()
            return None
        if _is_at(path, file):
            return file
        file.close()  # it has been removed before it was held


def remove_locked(path: Path, file: IO[bytes]) -> None:
    """Remove and let go a file that `lock_file` gave, and its folder if nothing else is in it."""
    if sys.platform == "win32":
        file.close()  # an open file can't be removed there
    try:
        path.unlink()
        path.parent.rmdir()
    except OSError:
        pass  # another process has begun in the folder
    finally:
        file.close()


def _hold(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # unlike flock's, such a lock is not inherited by workers, who might outlive a kill
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
