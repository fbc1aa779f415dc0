"""Training a vocabulary: gpt2np beside `tokenizers`, one thread each.

    python benchmarks/train_tokenizer.py ../shared/data [ROUNDS]

Every measurement is a process of its own, the two take turns, and the median of the rounds counts.
The time runs from the documents, which are in memory for both, to the finished vocabulary; the
peak of memory is that of the whole process with its documents. At the end, the command itself on
the whole file, which it never holds in memory, and tokens across words with characters as alphabet.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEPARATOR = "<|endoftext|>"
CORPORA = ("stories, 3 MB", "stories, 37 MB", "192 languages, 2.8 MB")
SIZES = (512, 1024, 8192, 32_000)
ONE_THREAD = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OPENBLAS_NUM_THREADS": "1",
}


def read_documents(data: Path, corpus: str) -> list[str]:
    if corpus.startswith("192"):
        files = sorted((data / "text" / "udhr").glob("*.txt"))
        return [file.read_text(encoding="utf-8") for file in files]
    with (data / "stories" / "train.txt").open(encoding="utf-8") as stories:
        return stories.read(3_000_000 if "3 MB" in corpus else -1).split(SEPARATOR)


def train_with_gpt2np(documents: list[str], size: int) -> tuple[float, Any]:
    from gpt2np.tokenizer.training.train import TrainingOptions, train

    start = time.perf_counter()
    trained = train(documents, TrainingOptions(vocab_size=size))
    return time.perf_counter() - start, [trained.tokens, [list(pair) for pair in trained.merges]]


def train_with_tokenizers(documents: list[str], size: int) -> tuple[float, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    start = time.perf_counter()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    seconds = time.perf_counter() - start
    model = json.loads(tokenizer.to_str())["model"]
    return seconds, [sorted(model["vocab"], key=model["vocab"].get), model["merges"]]


TRAINERS = {"gpt2np": train_with_gpt2np, "tokenizers": train_with_tokenizers}


def peak_memory(resources: Any) -> float:
    """MiB."""
    return float(resources.ru_maxrss) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure(data: Path, corpus: str, size: int, trainer: str) -> None:
    """One measurement, in this process; the result goes to stdout."""
    import resource

    seconds, vocabulary = TRAINERS[trainer](read_documents(data, corpus), size)
    memory = peak_memory(resource.getrusage(resource.RUSAGE_SELF))
    print(json.dumps([seconds, memory, vocabulary]))


def measured(data: Path, corpus: str, size: int, trainer: str) -> tuple[float, float, Any]:
    command = [sys.executable, __file__, str(data), corpus, str(size), trainer]
    environment = os.environ | ONE_THREAD
    output = subprocess.run(command, check=True, capture_output=True, env=environment).stdout
    seconds, memory, vocabulary = json.loads(output)
    return seconds, memory, vocabulary


def compare(data: Path, corpus: str, size: int, rounds: int) -> None:
    results = {trainer: [measured(data, corpus, size, trainer)] for trainer in TRAINERS}
    for _ in range(rounds - 1):
        for trainer, known in results.items():
            known.append(measured(data, corpus, size, trainer))
    ours, theirs = (
        statistics.median(seconds for seconds, *_ in known) for known in results.values()
    )
    memory = max(memory for _, memory, _ in results["gpt2np"])
    same = len({json.dumps(known[0][2]) for known in results.values()}) == 1
    print(
        f"{corpus:22} {size:6} {ours:8.2f} {theirs:10.2f} {ours / theirs:7.2f} "
        f"{'yes' if same else 'NO':>9} {memory:7.0f}",
        flush=True,
    )


def run_command(data: Path, what: str, *options: str) -> None:
    """The command line on the whole file: time and memory of the process, reading included."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(data / "stories" / "train.txt"), "--out", folder]
        command = [sys.executable, "-m", "gpt2np", "train-tokenizer", *files, *options, "--json"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        report = json.loads(process.stdout.read())
        _, _, resources = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    print(
        f"{what:40} {seconds:6.1f} s {peak_memory(resources):6.0f} MiB, "
        f"{report['reduction_percent']:.1f} % fewer tokens",
        flush=True,
    )


def main(data: Path, rounds: int) -> None:
    print(f"{'seconds, median of ' + str(rounds):22} {'tokens':>6} {'gpt2np':>8} {'tokenizers':>10}"
          f" {'ratio':>7} {'identical':>9} {'MiB':>7}")  # fmt: skip
    for corpus in CORPORA:
        for size in SIZES:
            compare(data, corpus, size, rounds)
    print("\nThe command, all 37 MB, report included")
    run_command(data, "bytes, 8192 tokens", "--vocab-size", "8192")
    run_command(data, "bytes, 32000 tokens", "--vocab-size", "32000")
    across = ["--pattern", "none", "--alphabet", "characters", "--max-token-length", "41"]
    run_command(data, "characters across words, 8192 tokens", "--vocab-size", "8192", *across)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        measure(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 3)
