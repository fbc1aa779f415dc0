"""Paths, shapes and processes that several benchmark programs share."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
_SHARED = [folder / "shared" / "data" for folder in (CHECKOUT, CHECKOUT.parent)]
DATA = Path(
    os.environ.get("GPT2NP_TEST_DATA", next(filter(Path.is_dir, _SHARED), _SHARED[1]))
).resolve()
"""Folder of the test data; by default, shared/data in or beside the checkout."""

VOCABULARY = DATA / "gpt2-tokenizer"
SHAPES = {  # layers, heads, channels
    "tiny": (2, 2, 64),
    "small": (12, 12, 768),
    "medium": (24, 16, 1024),
    "large": (36, 20, 1280),
    "xl": (48, 25, 1600),
}


def say(line: str) -> None:
    """Print a progress line to stderr."""
    print(line, file=sys.stderr, flush=True)


def is_setting(variable: str) -> bool:
    """Tell whether an environment variable configures BLAS or OpenMP."""
    return variable.startswith(("OPENBLAS_", "OMP_", "MKL_"))


def environment(checkout: Path = CHECKOUT, **variables: str) -> dict[str, str]:
    """Return the environment of a measured process that imports the gpt2np of `checkout`.

    The shell's settings of BLAS and OpenMP are left out: OPENBLAS_CORETYPE, for one, can slow down
    a single engine.
    """
    path = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    inherited = {name: v for name, v in os.environ.items() if not is_setting(name)}
    return {**inherited, "PYTHONPATH": path, "GPT2NP_TEST_DATA": str(DATA), **variables}


def in_new_process(program: str, *arguments: str) -> Any:
    """Run a program in a new process, and return what it prints, which is JSON."""
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment())
    return json.loads(done.stdout)


def cpu_name() -> str:
    """Return the processor's name, with the numbers that tell its generation."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    pairs = (line.partition(":") for line in lines)
    cpu = {key.strip(): value.strip() for key, _, value in pairs}
    name, family, model = (cpu.get(key, "?") for key in ("model name", "cpu family", "model"))
    return f"{name} (family {family}, model {model})"


def markdown(*cells: object) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def print_header(*titles: str) -> None:
    """Print the head of a Markdown table."""
    print(markdown(*titles), markdown(*["---"] * len(titles)), sep="\n", flush=True)
