"""File locks: one process at a time; the lock ends with the process, even if killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO


def acquire_lock(path: Path) -> IO[bytes] | None:
    """Create and lock the file `path`, and its folder; closing the file releases the lock.

    Returns None if another process holds the lock. On a file system without locks, every process
    gets the file.

    Raises:
        OSError: the file can't be created.
    """
    while True:
        path.parent.mkdir(exist_ok=True)
        try:
            file = path.open("ab")
        except FileNotFoundError:  # another process has removed the folder since mkdir
            continue
        if not _try_lock(file):
            file.close()
            return None
        if _is_at(path, file):
            return file
        file.close()  # another process removed the file before the lock was acquired


def remove_lock(path: Path, file: IO[bytes]) -> None:
    """Remove and release a lock file, and remove its folder if that is empty."""
    if sys.platform == "win32":
        file.close()  # Windows can't remove an open file
    try:
        path.unlink()
        path.parent.rmdir()
    except OSError:
        pass  # another process has started to use the folder
    finally:
        file.close()


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # Worker processes, which may outlive a killed parent, don't inherit a lockf lock;
            # they would inherit one of flock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
