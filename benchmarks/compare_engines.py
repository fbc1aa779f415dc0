"""The engines that compare.py measures, each in a process of its own.

    python compare_engines.py ENGINE FOLDER THREADS         a worker: JSON lines in, JSON lines out
    python compare_engines.py ENGINE FOLDER THREADS PROMPT  loads, prints one new token, ends

A worker says {"ready": …} when its model is loaded, then answers each line [task, argument] with an
object. What a library prints goes to stderr.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = list[int]
Array = NDArray[Any]
MIB = 1 << 20
DRAFT_ROWS, DRAFT_CONTEXT, BATCH_CONTEXT = 8, 200, 56


class Unsupported(Exception):
    """The engine has no way to do this."""


@dataclass
class Generated:
    """New ids for each prompt, the seconds to the first of them, and for all the others."""

    ids: list[Ids]
    first: float
    rest: float


class Engine(ABC):
    """A GPT-2 that continues sequences greedily."""

    package = ""
    steps = 16  # measured in a row
    no_rows = ""  # why several rows of one sequence can't be had

    @abstractmethod
    def __init__(self, folder: Path, threads: int) -> None: ...

    @abstractmethod
    def generate(
        self, prompts: list[Ids], steps: int, first_done: Callable[[], None] = lambda: None
    ) -> Generated:
        """Continue prompts of one length together; `first_done` is called after the first ids."""

    def text_after(self, prompt: str) -> str:
        """The token that follows."""
        raise Unsupported("no tokenizer")

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)


class StepEngine(Engine):
    """An engine whose every step can be seen."""

    @abstractmethod
    def begin(self, sequences: int) -> None:
        """Forget all, and make room for so many sequences."""

    @abstractmethod
    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        """Logits (S, r, V) after the chosen ones of the new ids of each sequence."""

    def undo(self) -> None:
        """Forget what the latest `feed` of the only sequence brought."""
        raise Unsupported(self.no_rows)

    def generate(
        self, prompts: list[Ids], steps: int, first_done: Callable[[], None] = lambda: None
    ) -> Generated:
        self.begin(len(prompts))
        start = time.perf_counter()
        newest = self.feed(prompts)[:, -1].argmax(-1)
        middle = time.perf_counter()
        first_done()
        ids = [newest]
        for _ in range(steps - 1):
            newest = self.feed([[int(i)] for i in newest])[:, -1].argmax(-1)
            ids.append(newest)
        rest = time.perf_counter() - middle
        return Generated(np.array(ids).T.tolist(), middle - start, rest)


class GPT2NP(StepEngine):
    @property
    def version(self) -> str:
        from gpt2np import __version__

        return __version__

    def __init__(self, folder: Path, threads: int) -> None:
        from gpt2np.model import GPT2, last_token_indices

        self.model, self.last_token_indices = GPT2.from_folder(folder), last_token_indices
        self.model.processes = threads

    def begin(self, sequences: int) -> None:
        self.caches = [self.model.new_cache() for _ in range(sequences)]

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        self.fed = len(new[0])
        one = len(rows) == 1
        chosen = self.last_token_indices(new) if one else np.array(rows) % self.fed
        logits = self.model.forward(new, self.caches, logits_indices=chosen)
        return logits.reshape(len(new), len(rows), -1)

    def undo(self) -> None:
        for cache in self.caches:
            cache.truncate(cache.length - self.fed)


class Transformers(StepEngine):
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
        self.fed = len(new[0])
        with self.torch.inference_mode():
            result = self.model(
                self.torch.tensor(new), past_key_values=self.cache, logits_to_keep=len(rows)
            )
        logits: Array = result.logits.numpy()
        return logits

    def undo(self) -> None:
        self.cache.crop(-self.fed)

    def text_after(self, prompt: str) -> str:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        done = self.generate([tokenizer.encode(prompt)], 1)
        return str(tokenizer.decode(done.ids[0]))


class CTranslate2(Engine):
    package = "ctranslate2"
    no_rows = "its interface gives no logits of several new tokens after a cache"

    def __init__(self, folder: Path, threads: int) -> None:
        import ctranslate2

        self.folder = folder
        self.generator = ctranslate2.Generator(
            str(folder / "ctranslate2"), compute_type="float32", intra_threads=threads
        )
        path = folder / "ctranslate2" / "vocabulary.json"
        self.tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))

    def generate(
        self, prompts: list[Ids], steps: int, first_done: Callable[[], None] = lambda: None
    ) -> Generated:
        seen: list[float] = []

        def look(result: Any) -> bool:
            if not seen:
                first_done()
            if len(seen) <= result.step:
                seen.append(time.perf_counter())
            return False

        tokens = [[self.tokens[i] for i in ids] for ids in prompts]
        start = time.perf_counter()
        results = self.generator.generate_batch(
            tokens,
            max_length=steps,
            min_length=steps,  # so that no end of text ends it
            include_prompt_in_result=False,
            callback=look,
        )
        ids = [result.sequences_ids[0] for result in results]
        return Generated(ids, seen[0] - start, seen[-1] - seen[0])

    def text_after(self, prompt: str) -> str:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        return str(tokenizer.decode(self.generate([tokenizer.encode(prompt).ids], 1).ids[0]))


class OnnxRuntime(StepEngine):
    package = "onnxruntime"

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        path = str(folder / "onnx" / "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy
        self.past_names = [put.name for put in self.session.get_inputs()[3:]]
        self.present_names = [put.name for put in self.session.get_outputs()[1:]]
        _, self.heads, _, self.size = self.session.get_inputs()[3].shape
        self.folder = folder

    def begin(self, sequences: int) -> None:
        empty = self.value(np.empty((sequences, self.heads, 0, self.size), np.float32))
        self.past = self.before = [empty] * len(self.past_names)
        self.length = self.fed = 0

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        self.fed = len(new[0])
        binding = self.session.io_binding()
        binding.bind_cpu_input("ids", np.array(new))
        binding.bind_cpu_input("places", np.arange(self.length, self.length + self.fed))
        binding.bind_cpu_input("rows", np.array(rows))
        for name, value in zip(self.past_names, self.past, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in ("logits", *self.present_names):
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        self.before, self.past = self.past, present
        self.length += self.fed
        found: Array = logits.numpy()
        return found

    def undo(self) -> None:
        self.past = self.before
        self.length -= self.fed

    def text_after(self, prompt: str) -> str:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        return str(tokenizer.decode(self.generate([tokenizer.encode(prompt).ids], 1).ids[0]))


class LlamaCpp(StepEngine):
    """As it comes, thus with keys and values in float16 and flash attention."""

    package = "llama_cpp_python"

    def __init__(self, folder: Path, threads: int) -> None:
        import llama_cpp

        self.cpp, self.folder, self.threads = llama_cpp, folder, threads
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        options = llama_cpp.llama_model_default_params()
        path = str(folder / "model.gguf").encode()
        self.model = llama_cpp.llama_model_load_from_file(path, options)
        if not self.model:
            raise Unsupported("llama.cpp can't load model.gguf")
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
        """Leave it as it is."""

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        self.fed, wanted = len(new[0]), {row % len(new[0]) for row in rows}
        batch = self.cpp.llama_batch_init(len(new) * self.fed, 0, 1)
        places = [(s, n) for s in range(len(new)) for n in range(self.fed)]
        for i, (s, n) in enumerate(places):
            batch.token[i] = new[s][n]
            batch.pos[i] = self.length + n
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = s
            batch.logits[i] = n in wanted
        batch.n_tokens = len(places)
        code = self.cpp.llama_decode(self.context, batch)
        self.cpp.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        self.length += self.fed
        shape = (len(new), len(rows), self.vocab_size)
        return np.ctypeslib.as_array(self.cpp.llama_get_logits(self.context), shape)

    def undo(self) -> None:
        self.length -= self.fed
        memory = self.cpp.llama_get_memory(self.context)
        self.cpp.llama_memory_seq_rm(memory, 0, self.length, -1)


class LlamaCppFloat32(LlamaCpp):
    """With keys and values in float32, too, and without flash attention, which is slower then."""

    def set_cache(self, options: Any) -> None:
        options.type_k = options.type_v = self.cpp.GGML_TYPE_F32
        options.flash_attn_type = self.cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED


def first_token_of_llama(folder: Path, threads: int, prompt: str) -> str:
    """Through its own Python class, which has the tokenizer."""
    from llama_cpp import Llama

    llama = Llama(
        str(folder / "model.gguf"), n_threads=threads, n_threads_batch=threads, verbose=False
    )
    done: Any = llama(prompt, max_tokens=1, temperature=0)
    return str(done["choices"][0]["text"])


class PlainNumPy(StepEngine):
    """The textbook's formulas on the whole text for every token, as picoGPT does it.

    In float32 throughout, the logits for one row; so it is faster than picoGPT itself.
    """

    package = "numpy"
    steps = 3
    no_rows = "it has no cache"

    def __init__(self, folder: Path, threads: int) -> None:
        from safetensors.numpy import load_file

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.layers, self.heads = config["n_layer"], config["n_head"]
        weights = load_file(folder / "model.safetensors")
        self.w = {name.removeprefix("transformer."): array for name, array in weights.items()}
        self.folder = folder

    def begin(self, sequences: int) -> None:
        if sequences > 1:
            raise Unsupported("it has no batches")
        self.text: Ids = []

    def feed(self, new: list[Ids], rows: Sequence[int] = (-1,)) -> Array:
        self.text = self.text + new[0]
        x = self.w["wte.weight"][self.text] + self.w["wpe.weight"][: len(self.text)]
        for layer in range(self.layers):
            x = x + self._attention(f"h.{layer}.attn", self._norm(f"h.{layer}.ln_1", x))
            h = self._linear(f"h.{layer}.mlp.c_fc", self._norm(f"h.{layer}.ln_2", x))
            h = 0.5 * h * (1 + np.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
            x = x + self._linear(f"h.{layer}.mlp.c_proj", h)
        logits: Array = self._norm("ln_f", x[list(rows)]) @ self.w["wte.weight"].T
        return logits[None]

    def _attention(self, name: str, x: Array) -> Array:
        n, width = x.shape
        qkv = self._linear(f"{name}.c_attn", x).reshape(n, 3, self.heads, -1)
        hidden = np.triu(np.full((n, n), -1e10, np.float32), 1)
        mixed = []
        for head in range(self.heads):
            q, k, v = qkv[:, 0, head], qkv[:, 1, head], qkv[:, 2, head]
            scores = q @ k.T * np.float32(q.shape[1] ** -0.5) + hidden
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v)
        return self._linear(f"{name}.c_proj", np.hstack(mixed).reshape(n, width))

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return np.asarray(scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"])

    def _linear(self, name: str, x: Array) -> Array:
        return np.asarray(x @ self.w[f"{name}.weight"] + self.w[f"{name}.bias"])

    def text_after(self, prompt: str) -> str:
        from gpt2np import Tokenizer  # picoGPT has OpenAI's

        tokenizer = Tokenizer.load(self.folder)
        return tokenizer.decode(self.generate([tokenizer.encode(prompt)], 1).ids[0])


ENGINES: dict[str, type[Engine]] = {
    "gpt2np": GPT2NP,
    "transformers": Transformers,
    "ctranslate2": CTranslate2,
    "onnxruntime": OnnxRuntime,
    "llama.cpp": LlamaCpp,
    "llama.cpp-float32": LlamaCppFloat32,
    "plain-numpy": PlainNumPy,
}


def random_ids(n: int, seed: int = 0) -> Ids:
    """Ids of GPT-2's vocabulary, without the end of text."""
    ids: Ids = np.random.default_rng(seed).integers(50256, size=n).tolist()
    return ids


def measure_prefill(engine: Engine, tokens: int) -> dict[str, float]:
    """Tokens/s from ids to the first new id, the median of at most three."""
    seconds: list[float] = []
    while len(seconds) < 3 and sum(seconds) < 1.5:
        seconds.append(engine.generate([random_ids(tokens, len(seconds))], 1).first)
    return {"value": tokens / statistics.median(seconds)}


def measure_decode(engine: Engine, context: int) -> dict[str, float]:
    """New tokens/s, one sequence; half of the steps are before `context` tokens, half after."""
    steps = engine.steps
    done = engine.generate([random_ids(context - steps // 2)], steps + 1)
    return {"value": steps / done.rest}


def measure_batch(engine: Engine, sequences: int) -> dict[str, float]:
    """New tokens/s of all sequences together."""
    prompts = [random_ids(BATCH_CONTEXT, seed) for seed in range(sequences)]
    done = engine.generate(prompts, engine.steps + 1)
    return {"value": engine.steps * sequences / done.rest}


def measure_rows(engine: Engine, rows: int) -> dict[str, float]:
    """Milliseconds for so many new tokens of one sequence in one call, with all their logits."""
    if not isinstance(engine, StepEngine) or engine.no_rows:
        raise Unsupported(engine.no_rows)
    engine.begin(1)
    engine.feed([random_ids(DRAFT_CONTEXT)])
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        engine.feed([random_ids(rows)], range(-rows, 0)).argmax(-1)
        seconds.append(time.perf_counter() - start)
        engine.undo()
    return {"value": 1000 * statistics.median(seconds)}


def measure_memory(engine: Engine, context: int) -> dict[str, float]:
    """The peak of this process in MiB: of all it did, and of decoding alone."""
    whole: list[float] = []

    def prompt_done() -> None:
        whole.append(peak_memory())
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    engine.generate([random_ids(context - engine.steps)], engine.steps + 1, prompt_done)
    return {"value": max(whole[0], peak_memory()), "decoding": peak_memory()}


def peak_memory() -> float:
    """MiB, of what is resident, mapped files included; and what child processes have besides."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    shares = sum(rollup(process, "Pss") for process in ("self", *children)) if children else 0.0
    besides = max(0.0, shares - rollup("self", "Rss"))
    return int(status.split("VmHWM:")[1].split()[0]) / 1024 + besides


def rollup(process: str, field: str) -> float:
    """MiB; with "Pss" what two processes have in common counts half for each."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return int(text.split(f"\n{field}:")[1].split()[0]) / 1024


def check(engine: Engine, reference: str) -> dict[str, Any]:
    """Whether the greedy ids are transformers', and how far the first logits are from its."""
    known = np.load(reference)
    done = engine.generate(known["prompts"].tolist()[:1], known["ids"].shape[1])
    answer: dict[str, Any] = {"equal": done.ids == known["ids"].tolist()[:1]}
    try:
        both = engine.generate(known["prompts"].tolist(), known["ids"].shape[1])
        answer["equal"] &= both.ids == known["ids"].tolist()
    except Unsupported:
        pass
    if isinstance(engine, StepEngine):
        engine.begin(1)
        logits = engine.feed(known["prompts"].tolist()[:1])[0, -1]
        answer["difference"] = float(abs(logits - known["logits"][0]).max())
    return answer


def measure_bandwidth(threads: int) -> dict[str, float]:
    """GB/s of NumPy summing 1 GiB, a part on each thread; the best of five."""
    parts = np.array_split(np.ones(1 << 28, np.float32), threads)
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            seconds.append(time.perf_counter() - start)
    return {"value": 4 * (1 << 28) / min(seconds) / 1e9}


def measure_peak(size: int) -> dict[str, float]:
    """GFLOP/s of NumPy's product of two square float32 matrices; the best of five."""
    a = np.random.default_rng(0).random((size, size), np.float32)
    out, seconds = np.empty_like(a), []
    for _ in range(5):
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        seconds.append(time.perf_counter() - start)
    return {"value": 2 * size**3 / min(seconds) / 1e9}


TASKS: dict[str, Callable[[Engine, Any], dict[str, Any]]] = {
    "check": check,
    "prefill": measure_prefill,
    "decode": measure_decode,
    "batch": measure_batch,
    "rows": measure_rows,
    "memory": measure_memory,
    "bandwidth": lambda _, threads: measure_bandwidth(threads),
    "peak": lambda _, size: measure_peak(size),
}


def serve(name: str, folder: Path, threads: int) -> None:
    """Load, then answer one task after another until stdin ends. "machine" loads nothing."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        engine: Any = ENGINES[name](folder, threads) if name in ENGINES else None
    except ImportError as error:
        return answer({"failed": f"not installed: {error.name}"})
    except Exception as error:
        return answer({"failed": f"{type(error).__name__}: {error}"})
    answer({"ready": engine.version if engine else ""})
    for line in sys.stdin:
        task, argument = json.loads(line)
        try:
            answer(TASKS[task](engine, argument))
        except Unsupported as error:
            answer({"unsupported": str(error)})
        except Exception as error:
            answer({"failed": f"{type(error).__name__}: {error}"})
    return None


def print_first_token(name: str, folder: Path, threads: int, prompt: str) -> None:
    """And end at once, so that only gpt2np's own command pays for an orderly end."""
    if name.startswith("llama.cpp"):
        text = first_token_of_llama(folder, threads, prompt)
    else:
        text = ENGINES[name](folder, threads).text_after(prompt)
    print(text, flush=True)
    os._exit(0)


if __name__ == "__main__":
    arguments = (sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    if len(sys.argv) == 4:
        serve(*arguments)
    else:
        print_first_token(*arguments, sys.argv[4])
