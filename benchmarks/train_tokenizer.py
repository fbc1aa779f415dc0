"""Compare training a vocabulary with gpt2np and with tokenizers, on one thread.

    python benchmarks/train_tokenizer.py ../shared/data [ROUNDS]

Every measurement has its own process. The trainers take turns; the table has medians. The time runs
from documents in memory to the finished vocabulary. Peak memory is that of the whole process,
documents included. Finally, the command `gpt2np train-tokenizer` reads the whole file as a stream,
also with merges across words and an alphabet of characters.
"""

import argparse
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
    """Read the documents of a corpus."""
    if corpus.startswith("192"):
        files = sorted((data / "text" / "udhr").glob("*.txt"))
        return [file.read_text(encoding="utf-8") for file in files]
    with (data / "stories" / "train.txt").open(encoding="utf-8") as stories:
        return stories.read(3_000_000 if "3 MB" in corpus else -1).split(SEPARATOR)


def train_with_gpt2np(documents: list[str], size: int) -> tuple[float, Any]:
    """Return seconds, and the tokens and merges."""
    from gpt2np.tokenizer.training import TrainingOptions, train

    start = time.perf_counter()
    trained = train(documents, TrainingOptions(vocab_size=size))
    return time.perf_counter() - start, [trained.tokens, [list(pair) for pair in trained.merges]]


def train_with_tokenizers(documents: list[str], size: int) -> tuple[float, Any]:
    """Return seconds, and the tokens and merges."""
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
    """Return the peak memory in MiB."""
    return float(resources.ru_maxrss) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure(data: Path, corpus: str, size: int, trainer: str) -> None:
    """Measure once, in this process; write the result to stdout."""
    import resource

    seconds, vocabulary = TRAINERS[trainer](read_documents(data, corpus), size)
    memory = peak_memory(resource.getrusage(resource.RUSAGE_SELF))
    print(json.dumps([seconds, memory, vocabulary]))


def measure_in_process(
    data: Path, corpus: str, size: int, trainer: str
) -> tuple[float, float, Any]:
    """Return seconds, MiB and the vocabulary of a measurement in a new process."""
    command = [sys.executable, __file__, str(data), corpus, str(size), trainer]
    environment = os.environ | ONE_THREAD
    output = subprocess.run(command, check=True, capture_output=True, env=environment).stdout
    seconds, memory, vocabulary = json.loads(output)
    return seconds, memory, vocabulary


def compare(data: Path, corpus: str, size: int, rounds: int) -> None:
    """Print one row of the table."""
    results = {trainer: [measure_in_process(data, corpus, size, trainer)] for trainer in TRAINERS}
    for _ in range(rounds - 1):
        for trainer, runs in results.items():
            runs.append(measure_in_process(data, corpus, size, trainer))
    ours, theirs = (statistics.median(seconds for seconds, *_ in runs) for runs in results.values())
    memory = max(memory for _, memory, _ in results["gpt2np"])
    same = len({json.dumps(runs[0][2]) for runs in results.values()}) == 1
    print(
        f"{corpus:22} {size:6} {ours:8.2f} {theirs:10.2f} {ours / theirs:7.2f} "
        f"{'yes' if same else 'NO':>9} {memory:7.0f}",
        flush=True,
    )


def run_command(data: Path, title: str, *options: str) -> None:
    """Print time and memory of the command on the whole file."""
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
        f"{title:40} {seconds:6.1f} s {peak_memory(resources):6.0f} MiB, "
        f"{report['reduction_percent']:.1f} % fewer tokens",
        flush=True,
    )


def main(data: Path, rounds: int) -> None:
    """Print the table, and the times of the command."""
    print(f"{'seconds, median of ' + str(rounds):22} {'tokens':>6} {'gpt2np':>8} {'tokenizers':>10}"
          f" {'ratio':>7} {'identical':>9} {'MiB':>7}")  # fmt: skip
    for corpus in CORPORA:
        for size in SIZES:
            compare(data, corpus, size, rounds)
    print("\nThe command on all 37 MB")
    run_command(data, "bytes, 8192 tokens", "--vocab-size", "8192")
    run_command(data, "bytes, 32000 tokens", "--vocab-size", "32000")
    across = ["--pattern", "none", "--alphabet", "characters", "--max-token-length", "41"]
    run_command(data, "characters across words, 8192 tokens", "--vocab-size", "8192", *across)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        measure(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
        parser.add_argument("data", type=Path, help="folder of the test data")
        parser.add_argument("rounds", type=int, nargs="?", default=3, help="default: 3")
        args = parser.parse_args()
        main(args.data, args.rounds)
