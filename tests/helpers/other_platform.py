"""Run gpt2np's command line as if on Windows or macOS: `other_platform.py PLATFORM ARGUMENTS`.

What the platform lacks is removed from the standard library. Text files that gpt2np opens without
an encoding are errors: Windows would read and write them in cp1252.
"""

import builtins
import io
import mmap
import os
import platform
import signal
import socket
import sys
import types
import warnings
from importlib import import_module
from pathlib import Path

if os.name == "posix":
    import fcntl
    import resource

NOT_ON_MACOS = {
    os: "memfd_create sched_getaffinity posix_fadvise posix_fallocate",
    mmap: "MADV_DONTNEED MADV_REMOVE",
}
NOT_ON_WINDOWS = {
    os: "WNOHANG chown fchmod fork forkpty geteuid getpgid getuid killpg mkfifo nice pread preadv "
    "register_at_fork sched_yield setsid statvfs sysconf uname",
    mmap: "MAP_SHARED PROT_READ MADV_WILLNEED",
    signal: "SIGALRM SIGHUP SIGKILL SIGUSR1 alarm pthread_sigmask setitimer",
    socket: "AF_UNIX socketpair",
}
# Modules that choose their own implementation while they are imported.
CHOOSE_AT_IMPORT = (
    "concurrent.futures.process ctypes filelock huggingface_hub multiprocessing numpy regex "
    "safetensors shutil subprocess tempfile tqdm zipfile"
)
MODULES_NOT_ON_WINDOWS = ("fcntl", "grp", "pwd", "readline", "resource", "termios", "tty")


real_open = builtins.open


def lock_as_windows(file: int, mode: int, size: int) -> None:
    """Lock a file as `msvcrt.locking` does: a lock that is held elsewhere is a PermissionError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(*error.args) from None


def refuse(*args):
    """Raise what `resource.setrlimit` raises on macOS for a limit on the address space."""
    raise ValueError("current limit exceeds maximum limit")


def open_without_proc(file, *args, **options):
    """Open a file, but none in /proc or /sys."""
    if isinstance(file, (str, os.PathLike)) and str(file).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real_open(file, *args, **options)


def refuse_if_open(function):
    """Make a function of `os` refuse paths that this process has open or mapped, as on Windows."""

    def refusing(*paths, **options):
        links = list(Path("/proc/self/fd").iterdir())
        used = {os.path.realpath(link) for link in links if link.is_symlink()}
        with real_open("/proc/self/maps", encoding="utf-8") as maps:
            used |= {"/" + line.rstrip().partition("/")[2] for line in maps if "/" in line}
        for path in paths:
            if os.path.realpath(path) in used:
                raise PermissionError(13, "The process cannot access the file", str(path))
        return function(*paths, **options)

    return refusing


def imitate(name: str) -> None:
    """Change the standard library to that of the platform, "win32" or "darwin"."""
    for module in CHOOSE_AT_IMPORT.split():
        import_module(module)
    platform.uname()
    missing = [NOT_ON_MACOS, NOT_ON_WINDOWS] if name == "win32" else [NOT_ON_MACOS]
    for names in missing:
        for module, functions in names.items():
            for function in functions.split():
                if hasattr(module, function):
                    delattr(module, function)
    builtins.open = io.open = open_without_proc
    if name == "win32":
        sys.modules.update(dict.fromkeys(MODULES_NOT_ON_WINDOWS))
        for function in ("remove", "rename", "replace", "rmdir", "unlink"):
            setattr(os, function, refuse_if_open(getattr(os, function)))
        sys.modules["msvcrt"] = types.ModuleType("msvcrt")
        sys.modules["msvcrt"].__dict__.update(locking=lock_as_windows, LK_NBLCK=2)
    else:
        resource.setrlimit = refuse
    sys.platform = name


if __name__ == "__main__":
    imitate(sys.argv.pop(1))
    warnings.filterwarnings("error", category=EncodingWarning, module="gpt2np")
    from gpt2np.__main__ import main

    sys.exit(main())
