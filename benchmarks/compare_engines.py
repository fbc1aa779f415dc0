"""Engines that compare.py measures, one per process.

    python compare_engines.py ENGINE FOLDER THREADS         a worker: JSON lines in, JSON lines out
    python compare_engines.py ENGINE FOLDER THREADS PROMPT  load, print one new token, exit

A worker writes the files that only its engine reads, if missing, and sends {"ready": version} when
its model is loaded. It then answers each line [task, argument] with one JSON object. Output of the
libraries goes to stderr.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from compare_models import make_gguf, make_onnx, random_ids
from numpy.typing import NDArray

Ids = list[int]
Array = NDArray[Any]
STEPS, BATCH_CONTEXT = 16, 56  # decode steps per measurement; tokens before a batch
OLD = "gpt2np (old)"
"""Name of the engine that runs the checkout of --old."""


@dataclass
class Generated:
    """Result of a generation.

    Attributes:
        ids: new ids of each prompt.
        first: seconds to the first new id of all prompts.
        rest: seconds from then to the last new id.
    """

    ids: list[Ids]
    first: float
    rest: float


class Engine(ABC):
    """A GPT-2 that continues sequences greedily; `package` is its distribution's name."""

    package = ""

    @abstractmethod
    def __init__(self, folder: Path, threads: int) -> None:
        """Load the model of a folder, and write the engine's own files if missing."""
        self.folder = folder

    @abstractmethod
    def generate(self, prompts: list[Ids], steps: int) -> Generated:
        """Continue prompts of equal length as one batch."""

    def text_after(self, prompt: str) -> str:
        """Return the text of the first new token."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        return str(tokenizer.decode(self.generate([tokenizer.encode(prompt).ids], 1).ids[0]))

    @property
    def version(self) -> str:
        """Version of the package."""
        return importlib.metadata.version(self.package)


class StepEngine(Engine):
    """An engine that is called once per decode step."""

    @abstractmethod
    def begin(self, sequences: int) -> None:
        """Drop all caches, and start empty sequences."""

    @abstractmethod
    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        """Append ids to each of S sequences; return logits (S, r, V) at r of their indices."""

    def generate(self, prompts: list[Ids], steps: int) -> Generated:
        self.begin(len(prompts))
        start = time.perf_counter()
        newest = self.feed(prompts)[:, -1].argmax(-1)
        middle = time.perf_counter()
        ids = [newest]
        for _ in range(steps - 1):
            newest = self.feed([[int(i)] for i in newest])[:, -1].argmax(-1)
            ids.append(newest)
        rest = time.perf_counter() - middle
        return Generated(np.array(ids).T.tolist(), middle - start, rest)


class GPT2NP(StepEngine):
    """The gpt2np on the path: this checkout, or that of --old."""

    @property
    def version(self) -> str:
        from gpt2np import __version__
        from gpt2np.kernels.blas import blas

        library = blas()
        return f"{__version__} ({library.core if library else 'unknown BLAS'})"

    def __init__(self, folder: Path, threads: int) -> None:
        from gpt2np.model import GPT2

        self.model = GPT2.from_folder(folder)
        self.model.processes = threads

    def begin(self, sequences: int) -> None:
        self.caches = [self.model.new_cache() for _ in range(sequences)]

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        length = len(new[0])
        starts = length * np.arange(len(new))[:, None]  # of the packed sequences
        indices = (starts + np.array(rows) % length).ravel()
        logits = self.model.forward(new, self.caches, logits_indices=indices)
        return logits.reshape(len(new), len(rows), -1)


class Transformers(StepEngine):
    """transformers, with its default attention (sdpa)."""

    package = "transformers"

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(threads)
        self.folder, self.torch = folder, torch
        self.model = GPT2LMHeadModel.from_pretrained(folder, dtype="float32")
        self.model.train(False)

    def begin(self, sequences: int) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        with self.torch.inference_mode():
            result = self.model(
                self.torch.tensor(new), past_key_values=self.cache, logits_to_keep=len(rows)
            )
        logits: Array = result.logits.numpy()
        return logits

    def text_after(self, prompt: str) -> str:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        done = self.generate([tokenizer.encode(prompt)], 1)
        return str(tokenizer.decode(done.ids[0]))


class CTranslate2(Engine):
    """CTranslate2, through its generate_batch."""

    package = "ctranslate2"

    def __init__(self, folder: Path, threads: int) -> None:
        import ctranslate2

        self.folder, target = folder, folder / "ctranslate2"
        if not target.exists():
            ctranslate2.converters.TransformersConverter(str(folder)).convert(str(target))
        self.generator = ctranslate2.Generator(
            str(target), compute_type="float32", intra_threads=threads
        )
        path = target / "vocabulary.json"
        self.tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))

    def generate(self, prompts: list[Ids], steps: int) -> Generated:
        times: list[float] = []

        def record_time(result: Any) -> bool:
            if len(times) <= result.step:
                times.append(time.perf_counter())
            return False

        tokens = [[self.tokens[i] for i in ids] for ids in prompts]
        start = time.perf_counter()
        results = self.generator.generate_batch(
            tokens,
            max_length=steps,
            min_length=steps,  # ignore the end of text
            include_prompt_in_result=False,
            callback=record_time,
        )
        ids = [result.sequences_ids[0] for result in results]
        return Generated(ids, times[0] - start, times[-1] - times[0])


class OnnxRuntime(StepEngine):
    """ONNX Runtime, on the graph that compare_models.py writes."""

    package = "onnxruntime"

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        path = folder / "onnx" / "model.onnx"
        if not path.exists():
            make_onnx(folder)
        self.session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy
        self.past_names = [node.name for node in self.session.get_inputs()[3:]]
        self.present_names = [node.name for node in self.session.get_outputs()[1:]]
        _, self.heads, _, self.size = self.session.get_inputs()[3].shape
        self.folder = folder

    def begin(self, sequences: int) -> None:
        empty = self.value(np.empty((sequences, self.heads, 0, self.size), np.float32))
        self.past = [empty] * len(self.past_names)
        self.length = 0

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        n = len(new[0])
        binding = self.session.io_binding()
        binding.bind_cpu_input("ids", np.array(new))
        binding.bind_cpu_input("positions", np.arange(self.length, self.length + n))
        binding.bind_cpu_input("rows", np.array(rows))
        for name, value in zip(self.past_names, self.past, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in ("logits", *self.present_names):
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        logits, *self.past = binding.get_outputs()
        self.length += n
        array: Array = logits.numpy()
        return array


class LlamaCpp(StepEngine):
    """llama.cpp with its defaults: keys and values in float16, flash attention."""

    package = "llama_cpp_python"

    def __init__(self, folder: Path, threads: int) -> None:
        import llama_cpp

        self.cpp, self.folder, self.threads = llama_cpp, folder, threads
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        options = llama_cpp.llama_model_default_params()
        path = folder / "model.gguf"
        if not path.exists():
            make_gguf(folder, path)
        self.model = llama_cpp.llama_model_load_from_file(bytes(path), options)
        if not self.model:
            raise ValueError("llama.cpp can't load model.gguf")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.context: Any = None

    def begin(self, sequences: int) -> None:
        if self.context:
            self.cpp.llama_free(self.context)
        options = self.cpp.llama_context_default_params()
        options.n_ctx = 1024 if sequences == 1 else 256 * sequences
        options.n_seq_max = sequences
        options.n_threads = options.n_threads_batch = self.threads
        self.set_cache(options)
        self.context = self.cpp.llama_init_from_model(self.model, options)
        self.length = 0

    def set_cache(self, options: Any) -> None:
        """Set the type of the KV cache; here, keep the default."""

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        length, logits_indices = len(new[0]), {row % len(new[0]) for row in rows}
        batch = self.cpp.llama_batch_init(len(new) * length, 0, 1)
        tokens = [(s, n) for s in range(len(new)) for n in range(length)]
        for i, (s, n) in enumerate(tokens):
            batch.token[i] = new[s][n]
            batch.pos[i] = self.length + n
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = s
            batch.logits[i] = n in logits_indices
        batch.n_tokens = len(tokens)
        code = self.cpp.llama_decode(self.context, batch)
        self.cpp.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        self.length += length
        shape = (len(new), len(rows), self.vocab_size)
        return np.ctypeslib.as_array(self.cpp.llama_get_logits(self.context), shape)

    def text_after(self, prompt: str) -> str:
        """Return the first new token of llama.cpp's Python class, which has a tokenizer."""
        path, n = str(self.folder / "model.gguf"), self.threads
        llama = self.cpp.Llama(path, n_threads=n, n_threads_batch=n, verbose=False)
        completion: Any = llama(prompt, max_tokens=1, temperature=0)
        return str(completion["choices"][0]["text"])


class LlamaCppFloat32(LlamaCpp):
    """llama.cpp with a float32 KV cache, without flash attention, which is slower in float32."""

    def set_cache(self, options: Any) -> None:
        options.type_k = options.type_v = self.cpp.GGML_TYPE_F32
        options.flash_attn_type = self.cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED


ENGINES: dict[str, type[Engine]] = {
    "gpt2np": GPT2NP,
    "transformers": Transformers,
    "ctranslate2": CTranslate2,
    "onnxruntime": OnnxRuntime,
    "llama.cpp": LlamaCpp,
}


def measure_prefill(engine: Engine, tokens: int) -> dict[str, float]:
    """Measure prompt tokens/s up to the first new id: median of at most three runs."""
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 1.5:
        seconds.append(engine.generate([random_ids(tokens, len(seconds))], 1).first)
    return {"value": tokens / statistics.median(seconds)}


def measure_decode(engine: Engine, context: int) -> dict[str, float]:
    """Measure new tokens/s of one sequence; `context` is the middle of the measured steps."""
    done = engine.generate([random_ids(context - STEPS // 2)], STEPS + 1)
    return {"value": STEPS / done.rest}


def measure_batch(engine: Engine, sequences: int) -> dict[str, float]:
    """Measure new tokens/s of a batch, summed over the sequences."""
    prompts = [random_ids(BATCH_CONTEXT, seed) for seed in range(sequences)]
    done = engine.generate(prompts, STEPS + 1)
    return {"value": STEPS * sequences / done.rest}


def measure_memory(engine: Engine, context: int) -> dict[str, float]:
    """Measure the peak memory of this process in MiB."""
    engine.generate([random_ids(context - STEPS)], STEPS + 1)
    return {"value": peak_memory()}


def peak_memory() -> float:
    """Return the peak resident memory in MiB, with mapped files and unshared child memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    shares = sum(rollup(process, "Pss") for process in ("self", *children)) if children else 0.0
    children_only = max(0.0, shares - rollup("self", "Rss"))
    return int(status.split("VmHWM:")[1].split()[0]) / 1024 + children_only


def rollup(process: str, field: str) -> float:
    """Return a field of smaps_rollup in MiB; "Pss" divides shared pages among the processes."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return int(text.split(f"\n{field}:")[1].split()[0]) / 1024


def check(engine: Engine, reference: str) -> dict[str, Any]:
    """Compare greedy ids, and the first logits, with those of transformers."""
    expected = np.load(reference)
    prompts, ids = expected["prompts"].tolist(), expected["ids"].tolist()
    answer: dict[str, Any] = {"equal": engine.generate(prompts, len(ids[0])).ids == ids}
    if isinstance(engine, StepEngine):
        engine.begin(1)
        logits = engine.feed(prompts[:1])[0, -1]
        answer["difference"] = float(abs(logits - expected["logits"][0]).max())
    return answer


TASKS: dict[str, Callable[[Engine, Any], dict[str, Any]]] = {
    "check": check,
    "prefill": measure_prefill,
    "decode": measure_decode,
    "batch": measure_batch,
    "memory": measure_memory,
}


def serve(name: str, folder: Path, threads: int) -> None:
    """Load an engine, then answer tasks until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        engine = (ENGINES | {OLD: GPT2NP})[name](folder, threads)
    except ImportError as error:
        return answer({"failed": f"not installed: {error.name}"})
    except Exception as error:
        return answer({"failed": f"{type(error).__name__}: {error}"})
    answer({"ready": engine.version})
    for line in sys.stdin:
        task, argument = json.loads(line)
        try:
            answer(TASKS[task](engine, argument))
        except Exception as error:
            answer({"failed": f"{type(error).__name__}: {error}"})
    return None


def print_first_token(name: str, folder: Path, threads: int, prompt: str) -> None:
    """Print the first new token, and exit without cleaning up.

    So only gpt2np, which runs as its own command, pays for an orderly exit.
    """
    text = ENGINES[name](folder, threads).text_after(prompt)
    print(text, flush=True)
    os._exit(0)


if __name__ == "__main__":
    arguments = (sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    if len(sys.argv) == 4:
        serve(*arguments)
    else:
        print_first_token(*arguments, sys.argv[4])
