"""Measure servers under load: tokens per second, time to first token, time between tokens.

    python benchmarks/serving.py [--model bundled] [--streams 1 4 16 64] [--tokens 320] [--rounds 3]
    python benchmarks/serving.py --llama-server llama.cpp/build/bin/llama-server

Each of the concurrent streams is a client that sends five requests, one after the other; their
lengths differ and add up to --tokens new tokens. So requests begin and end all the time, and all
clients end together. In each round the servers take turns: `gpt2np serve`, servers that already run
(--url), and llama-server with the same weights in float32 (needs `pip install gguf`). With 16
streams, `generate_batch` has its turn, too: five batches of 16 rows with as many tokens.

The table has medians over the rounds; times are those of all rounds. "Between tokens" is the time
between two pieces of a text: accepted draft tokens come in one piece, and no server sends half a
character.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from common import environment, markdown, print_header, say

MAX_STREAMS = 64
CONTEXT = 512  # tokens of llama-server's KV cache for each stream
BATCH = 16
THREADS = 2
TIMEOUT = 300  # seconds for a turn, and for the start of a server
PAUSE = 1.0  # seconds between turns, in which threads stop to spin
LENGTHS = (0.1, 0.15, 0.2, 0.25, 0.3)  # of a client's requests, as shares of --tokens
WORDS = ("the king", "a fox", "my sister", "an old ship", "the river", "nobody", "some children")
OPTIONS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "ignore_eos": True}


@dataclass
class Measured:
    """What one server did with one number of streams; times in seconds.

    Attributes:
        rates: tokens per second of each round.
        first: time to the first token of each request.
        between: times between two pieces of a text.
    """

    rates: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)

    def row(self) -> str:
        """Return the figures as cells of a table."""
        spread = f"{min(self.rates):.0f}–{max(self.rates):.0f}"
        cells = [f"{median(self.rates):.0f} ({spread})"]
        for times in (self.first, self.between):
            p99 = quantiles(times, n=100)[98]
            cells += [f"{1e3 * median(times):.1f}", f"{1e3 * p99:.1f}"]
        return " | ".join(cells)


def prompts(rng: random.Random) -> Iterator[str]:
    """Yield prompts of different lengths, about 7 to 50 tokens."""
    while True:
        yield " and ".join(["Once upon a time", *rng.choices(WORDS, k=rng.randrange(1, 13))])


async def stream(url: str, prompt: str, n_tokens: int, seed: int, measured: Measured) -> None:
    """Stream one completion and record its times."""
    address = urlsplit(url)
    request = {"prompt": prompt, "max_tokens": n_tokens, "seed": seed, "stream": True, **OPTIONS}
    request |= {"top_p": 1, "min_p": 0}  # llama-server has other defaults
    body = json.dumps(request)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    last, times = time.perf_counter(), measured.first
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"{head}{body}".encode())
    try:
        while b"[DONE]" not in (event := await reader.readuntil(b"\n\n")):
            if b'"text"' in event and b'"text":""' not in event:
                now = time.perf_counter()
                times.append(now - last)
                last, times = now, measured.between
    except asyncio.IncompleteReadError as error:
        raise SystemExit(f"{url}: {error.partial.decode()}") from error
    finally:
        writer.close()


async def client(url: str, rng: random.Random, n_tokens: int, measured: Measured) -> None:
    """Send five requests with `n_tokens` new tokens in all, in random order."""
    for share, prompt in zip(rng.sample(LENGTHS, len(LENGTHS)), prompts(rng), strict=False):
        await stream(url, prompt, round(share * n_tokens), rng.randrange(1 << 30), measured)


async def load(url: str, n_streams: int, n_tokens: int, measured: Measured) -> None:
    """Run `n_streams` clients at the same time and record their times."""
    start = time.perf_counter()
    clients = [client(url, random.Random(i), n_tokens, measured) for i in range(n_streams)]
    await asyncio.wait_for(asyncio.gather(*clients), TIMEOUT)
    measured.rates.append(n_streams * n_tokens / (time.perf_counter() - start))


@contextmanager
def running(command: list[str], url: str = "") -> Iterator[str]:
    """Run a server; yield `url`, or the one that it prints, once its model is loaded."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if not url else None,
        text=True,
        env=environment(),
    )
    try:
        for line in process.stderr or ():
            if found := re.search(r" at (http://\S+)$", line):
                url = found[1]
                break
        until = time.monotonic() + TIMEOUT
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{command[0]} does not run")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    """Tell whether a server answers that it is healthy."""
    try:
        return bool(urlopen(f"{url}/health", timeout=5).status == 200)
    except (URLError, OSError, ValueError):
        return False


def gpt2np_server(model: str) -> list[str]:
    """Return the command of our server."""
    options = ["--port", "0", "--max-running", str(MAX_STREAMS)]
    return [sys.executable, "-m", "gpt2np", "serve", "--model", model, *options]


def llama_server(program: str, gguf: Path, port: int) -> list[str]:
    """Return the command of llama-server; its continuous batching is on by default."""
    options = {
        "--model": gguf,
        "--port": port,
        "--threads": THREADS,
        "--parallel": MAX_STREAMS,
        "--ctx-size": MAX_STREAMS * CONTEXT,
        "--cache-type-k": "f32",
        "--cache-type-v": "f32",
    }
    return [program, "--log-disable", *(str(part) for item in options.items() for part in item)]


def free_port() -> int:
    """Return a port that no program uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def serve_batches(model: str, n_tokens: int) -> None:
    """For each line of stdin, run five batches and print the tokens per second."""
    import gpt2np

    lm, rng = gpt2np.load(model, processes="auto"), random.Random(0)
    for _ in sys.stdin:
        start = time.perf_counter()
        for share in LENGTHS:
            rows = [next(prompts(rng)) for _ in range(BATCH)]
            n = round(share * n_tokens)
            lm.generate_batch(rows, **OPTIONS, seed=1, max_new_tokens=n, progress=False)
        print(BATCH * n_tokens / (time.perf_counter() - start), flush=True)


@contextmanager
def batches(model: str, n_tokens: int) -> Iterator[subprocess.Popen[str]]:
    """Run `serve_batches` in a new process."""
    command = [sys.executable, __file__, "--model", model, "--tokens", str(n_tokens), "--batches"]
    variables = environment(OPENBLAS_THREAD_TIMEOUT="20")  # as gpt2np's commands do
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables
    ) as process:
        yield process


def batch_speed(process: subprocess.Popen[str]) -> float:
    """Return the tokens per second of `generate_batch` with 16 rows."""
    assert process.stdin and process.stdout
    print(file=process.stdin, flush=True)
    return float(process.stdout.readline())


def measure(args: argparse.Namespace, urls: dict[str, str]) -> None:
    """Measure the servers in turns and print a table."""
    results: defaultdict[tuple[int, str], Measured] = defaultdict(Measured)
    batch_rates: list[float] = []

    def turn(name: str, n_streams: int, n_tokens: int) -> Measured:
        time.sleep(PAUSE)
        measured = Measured()
        asyncio.run(load(urls[name], n_streams, n_tokens, measured))
        return measured

    with ExitStack() as stack:
        if BATCH in args.streams:
            process = stack.enter_context(batches(args.model, args.tokens))
            batch_speed(process)  # warm up
        for name in urls:
            turn(name, BATCH, args.tokens // 2)
        for number in range(args.rounds):
            for n_streams in args.streams:
                for name in urls:
                    found, result = turn(name, n_streams, args.tokens), results[n_streams, name]
                    say(f"{number + 1} of {args.rounds} | {n_streams} | {name} | {found.row()}")
                    result.rates += found.rates
                    result.first += found.first
                    result.between += found.between
                if n_streams == BATCH:
                    time.sleep(PAUSE)
                    batch_rates.append(batch_speed(process))
                    say(f"{number + 1} of {args.rounds} | generate_batch | {batch_rates[-1]:.0f}")
    times = ("first token p50, ms", "p99", "between p50, ms", "p99")
    print_header("streams", "server", "tokens/s", *times)
    for (n_streams, name), result in sorted(results.items(), key=lambda item: item[0][0]):
        print(markdown(n_streams, name, result.row()))
    if batch_rates:
        served = results[BATCH, next(iter(urls))].rates
        ratios = [a / b for a, b in zip(served, batch_rates, strict=True)]
        print(
            f"\n`generate_batch`, {BATCH} rows: {median(batch_rates):.0f} tokens/s; "
            f"served ÷ batch of each round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
        )


def main() -> None:
    """Start the servers and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", default="bundled", help="model of all servers (default: bundled)")
    add("--url", action="append", default=[], help="a further server that already runs; repeatable")
    add("--llama-server", metavar="PATH", help="measure this llama-server, too")
    streams = f"concurrent streams, at most {MAX_STREAMS} (default: 1 4 16 64)"
    add("--streams", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help=streams)
    add("--tokens", type=int, default=320, help="new tokens of each client (default: 320)")
    add("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    add("--batches", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.batches:
        serve_batches(args.model, args.tokens)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending the servers
    with ExitStack() as stack:
        urls = {"gpt2np": stack.enter_context(running(gpt2np_server(args.model)))}
        if args.llama_server:
            from compare_models import make_gguf

            from gpt2np.hub import find_model

            gguf = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.gguf"
            make_gguf(find_model(args.model).path, gguf)
            port = free_port()
            command = llama_server(args.llama_server, gguf, port)
            url = f"http://127.0.0.1:{port}"
            urls["llama-server"] = stack.enter_context(running(command, url))
        measure(args, urls | {url: url for url in args.url})


if __name__ == "__main__":
    main()
