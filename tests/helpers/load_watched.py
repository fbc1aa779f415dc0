"""Load folders one after another and report the outcomes; run as a separate process.

Standard input: a JSON list of [folder, load tokenizer and generation config, too?]. Standard
output: one line of JSON per folder with the error or the weights' digests, the CPU time in seconds,
the additional peak memory, and every opened file. If a folder kills the process, its line is
missing.
"""

import contextlib
import hashlib
import importlib
import json
import pkgutil
import resource
import signal
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np

import gpt2np
from gpt2np import GPT2, GPT2NPError, LanguageModel
from gpt2np.checkpoint import safetensors_file

ALLOWED = 200 << 20  # bytes of memory for a folder
MAPPED = 100 << 20  # additional address space: threads' stacks, mapped files

TIMEOUT_S = 10  # for a folder

LOADING = ("chat", "checkpoint", "data", "generation", "kernels", "model", "runtime", "tokenizer")

opened: list[str] = []


def record(event: str, arguments: tuple) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        opened.append(str(arguments[0]))
    elif event.startswith(("pickle.", "marshal.", "os.system", "subprocess.")):
        opened.append(event)


def recorded_safe_open(path, *arguments, **options):
    opened.append(str(path))  # Rust code raises no audit events
    return safe_open(path, *arguments, **options)


safe_open = safetensors_file.safe_open
safetensors_file.safe_open = recorded_safe_open


class Timeout(BaseException):
    """A timeout; not an Exception, so that the library does not catch it."""


def give_up(*_: object) -> None:
    raise Timeout


def digest(array: np.ndarray) -> str:
    """Return a digest of float32 values; all NaNs are equal."""
    numbers = np.where(np.isnan(array), np.float32(np.nan), array).astype("<f4")
    return f"{array.shape} {hashlib.sha256(numbers.tobytes()).hexdigest()}"


def status(field: str) -> int:
    """Return a size in bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def attempt(folder: str, whole: bool) -> dict:
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, (_, most) = status("VmRSS"), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + ALLOWED + MAPPED, most))
    opened.clear()
    signal.alarm(TIMEOUT_S)
    result, model = {}, None
    started = time.process_time()
    try:
        model = LanguageModel.load(folder).model if whole else GPT2.from_folder(folder)
    except GPT2NPError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    except (Exception, Timeout) as error:
        result = {"error": type(error).__name__, "message": repr(error)[:500]}
    signal.alarm(0)
    result |= {"whole": whole, "seconds": time.process_time() - started, "opened": list(opened)}
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if model is not None:
        result["weights"] = {name: digest(array) for name, array in model.weights.items()}
        result["config"] = asdict(model.config)
    return result | {"bytes": status("VmHWM") - before}


if __name__ == "__main__":
    bundled = Path(__file__).parents[2] / "weights"
    # Import these packages first, so that imports are not attributed to a folder.
    for module in pkgutil.walk_packages(gpt2np.__path__, "gpt2np."):
        if module.name.split(".")[1] in LOADING:
            importlib.import_module(module.name)
    with contextlib.suppress(GPT2NPError):
        LanguageModel.load(bundled)
    signal.signal(signal.SIGALRM, give_up)
    warnings.simplefilter("error")  # a warning would be a second line on stderr
    sys.addaudithook(record)
    for folder, whole in json.load(sys.stdin):
        print(json.dumps(attempt(folder, whole)), flush=True)
