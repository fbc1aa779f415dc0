"""Measure servers under load: tokens per second, time to first token, time between tokens.

    python benchmarks/serving.py [--model bundled] [--streams 1 4 16 64] [--tokens 320] [--rounds 3]
    python benchmarks/serving.py --url http://127.0.0.1:8080    # and a server that already runs

Each of the concurrent streams is a client that sends five requests, one after the other; their
lengths differ and add up to --tokens new tokens. So requests begin and end all the time, and all
clients end together. In each round, `gpt2np serve` and the servers of --url take turns. To compare
with llama-server, start it with the weights in float32, --parallel 64, --ctx-size 32768 and a
float32 KV cache (`compare_models.make_gguf` writes its file).

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
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from common import environment, markdown, print_header, say

MAX_STREAMS = 64
WARM_UP = 16  # streams before the first round
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
def running(model: str) -> Iterator[str]:
    """Run gpt2np's server; yield the URL that it prints, once its model is loaded."""
    command = [sys.executable, "-m", "gpt2np", "serve", "--model", model, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--max-running", str(MAX_STREAMS)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr
    try:
        lines = (re.search(r" at (http://\S+)$", line) for line in process.stderr)
        found = next(filter(None, lines), None)
        if found is None:
            raise SystemExit(f"gpt2np serve ended with code {process.wait()}")
        until = time.monotonic() + TIMEOUT
        while not is_ready(found[1]):
            if time.monotonic() > until:
                raise SystemExit(f"gpt2np serve is not ready after {TIMEOUT} s")
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    """Tell whether a server answers that it is healthy."""
    try:
        return bool(urlopen(f"{url}/health", timeout=5).status == 200)
    except (URLError, OSError, ValueError):
        return False


def measure(args: argparse.Namespace, urls: dict[str, str]) -> None:
    """Measure the servers in turns and print a table."""
    results: defaultdict[tuple[int, str], Measured] = defaultdict(Measured)

    def turn(name: str, n_streams: int, n_tokens: int, measured: Measured) -> None:
        time.sleep(PAUSE)
        asyncio.run(load(urls[name], n_streams, n_tokens, measured))

    for name in urls:
        turn(name, WARM_UP, args.tokens // 2, Measured())
    for number in range(args.rounds):
        for n_streams in args.streams:
            for name in urls:
                turn(name, n_streams, args.tokens, results[n_streams, name])
                say(f"{number + 1} of {args.rounds} | {n_streams} | {name}")
    times = ("first token p50, ms", "p99", "between p50, ms", "p99")
    print_header("streams", "server", "tokens/s", *times)
    for (n_streams, name), result in results.items():
        print(markdown(n_streams, name, result.row()))


def main() -> None:
    """Start the servers and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", default="bundled", help="model of all servers (default: bundled)")
    add("--url", action="append", default=[], help="a further server that already runs; repeatable")
    streams = f"concurrent streams, at most {MAX_STREAMS} (default: 1 4 16 64)"
    add("--streams", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help=streams)
    add("--tokens", type=int, default=320, help="new tokens of each client (default: 320)")
    add("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending the server
    with running(args.model) as url:
        measure(args, {"gpt2np": url} | {url: url for url in args.url})


if __name__ == "__main__":
    main()
