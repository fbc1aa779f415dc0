"""Load folders one after another and report what came of each: a program for a process of its own.

Standard input: a JSON list of [folder, whether with its tokenizer and generation config]. Standard
output: for each a line of JSON with the error or the weights' digests, the seconds, the memory
above what was there before, and every file that was opened. A folder that needs more address space
than ALLOWED, or kills the process, so shows by what is missing.
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

ALLOWED = 200 << 20  # bytes that a folder may need
MAPPED = 100 << 20  # of address space alone, beyond that: threads' stacks, the mapped files

HANGS = 10  # seconds, after which a folder is given up

opened: list[str] = []


def record(event: str, arguments: tuple) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        opened.append(str(arguments[0]))
    elif event.startswith(("pickle.", "marshal.", "os.system", "subprocess.")):
        opened.append(event)


def recorded_safe_open(path, *arguments, **options):
    opened.append(str(path))  # it is Rust, and raises no events
    return safe_open(path, *arguments, **options)


safe_open = safetensors_file.safe_open
safetensors_file.safe_open = recorded_safe_open


class Hangs(BaseException):
    """Nobody's `except Exception` takes it for an error of the folder's."""


def give_up(*_: object) -> None:
    raise Hangs


def digest(array: np.ndarray) -> str:
    """Of the numbers, in float32: equal if these are; any nan is like any other."""
    numbers = np.where(np.isnan(array), np.float32(np.nan), array).astype("<f4")
    return f"{array.shape} {hashlib.sha256(numbers.tobytes()).hexdigest()}"


def status(field: str) -> int:
    """A number of bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def attempt(folder: str, whole: bool) -> dict:
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, (_, most) = status("VmRSS"), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + ALLOWED + MAPPED, most))
    opened.clear()
    signal.alarm(HANGS)
    result, model = {}, None
    started = time.perf_counter()
    try:
        model = LanguageModel.load(folder).model if whole else GPT2.from_folder(folder)
    except GPT2NPError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    except (Exception, Hangs) as error:
        result = {"error": type(error).__name__, "message": repr(error)[:500]}
    signal.alarm(0)
    result |= {"whole": whole, "seconds": time.perf_counter() - started, "opened": list(opened)}
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if model is not None:
        result["weights"] = {name: digest(array) for name, array in model.weights.items()}
        result["config"] = asdict(model.config)
    return result | {"bytes": status("VmHWM") - before}


if __name__ == "__main__":
    bundled = Path(__file__).parents[2] / "weights"
    # What a folder is the first to need is not its doing, nor that bytecode is read for it.
    for module in pkgutil.walk_packages(gpt2np.__path__, "gpt2np."):
        if not module.name.endswith(("__main__", "evaluation.harness")):  # that needs lm_eval
            importlib.import_module(module.name)
    with contextlib.suppress(GPT2NPError):
        LanguageModel.load(bundled)
    signal.signal(signal.SIGALRM, give_up)
    warnings.simplefilter("error")  # it would be a second line on stderr
    sys.addaudithook(record)
    for folder, whole in json.load(sys.stdin):
        print(json.dumps(attempt(folder, whole)), flush=True)
