"""Measure a server under load: tokens per second, time to first token, inter-token latency.

    python benchmarks/serving.py [--url http://127.0.0.1:8000] [--streams 1 4 16 64] [--tokens 128]

Each client streams completions, one after the other, over one connection. Without --url, the
program starts `gpt2np serve --model MODEL` and also measures `generate_batch` with 16 rows, in
turns. --url also takes another server with OpenAI's protocol, such as llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from urllib.parse import urlsplit

WORDS = ("the king", "a fox", "my sister", "an old ship", "the river", "nobody", "some children")


@dataclass
class Measured:
    """Times of the streams of one run, in seconds."""

    tokens: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    next: list[float] = field(default_factory=list)

    def row(self) -> str:
        """Return the figures of a table's row."""
        p99 = quantiles(self.next, n=100)[98] if len(self.next) > 1 else 0.0
        return (
            f"{self.tokens / self.seconds:8.0f} tokens/s   first token "
            f"{1e3 * median(self.first):7.1f} ms   between tokens "
            f"{1e3 * median(self.next):6.2f} ms (p99 {1e3 * p99:6.2f})"
        )


async def stream(url: str, prompt: str, n_tokens: int, seed: int, measured: Measured) -> None:
    """Stream one completion and record its times."""
    address = urlsplit(url)
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": n_tokens,
            "seed": seed,
            "stream": True,
            "temperature": 0.8,
            "top_k": 40,
            "ignore_eos": True,
        }
    ).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    last = started = time.perf_counter()
    writer.write(head.encode() + body)
    n = 0
    async for line in reader:
        if not line.startswith(b'data: {"') or b'"text"' not in line:
            continue
        now = time.perf_counter()
        if n == 0:
            measured.first.append(now - started)
        else:
            measured.next.append(now - last)
        n += 1
        last = now
    measured.tokens += n_tokens
    writer.close()


async def load(url: str, n_streams: int, n_requests: int, n_tokens: int) -> Measured:
    """Run `n_requests` streams, `n_streams` at a time."""
    measured, rng = Measured(), random.Random(n_streams)
    requests = iter([(rng.choice(WORDS), rng.randrange(1 << 30)) for _ in range(n_requests)])

    async def client() -> None:
        for prompt, seed in requests:
            await stream(url, f"Once upon a time {prompt}", n_tokens, seed, measured)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(n_streams)))
    measured.seconds = time.perf_counter() - started
    return measured


@contextmanager
def server(model: str) -> Iterator[str]:
    """Run a server for a model; yields its URL."""
    command = [sys.executable, "-m", "gpt2np", "serve", "--model", model, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r" at (http://\S+)$", line):
                yield found[1]
                return
        raise SystemExit("the server has ended")
    finally:
        process.terminate()
        process.wait()


def batch_speed(model: str, n_tokens: int) -> float:
    """Return the tokens per second of `generate_batch` with 16 prompts, in a new process."""
    program = f"""
import time, gpt2np
lm = gpt2np.load({model!r}, processes="auto")
prompts = ["Once upon a time " + w for w in ({WORDS} * 3)[:16]]
options = dict(temperature=0.8, top_k=40, ignore_eos=True, max_new_tokens={n_tokens}, seed=1)
lm.generate_batch(prompts, **options)
start = time.perf_counter()
for _ in range(2):
    lm.generate_batch(prompts, **options)
print(2 * 16 * {n_tokens} / (time.perf_counter() - start))
"""
    command = [sys.executable, "-c", program]
    return float(subprocess.run(command, capture_output=True, check=True).stdout)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--url", action="append", help="a server that already runs; repeatable")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    def run(urls: list[str]) -> None:
        for url in urls:
            asyncio.run(load(url, 4, 8, args.tokens))  # warm up
        for n in args.streams:
            for _ in range(args.rounds):
                for url in urls:
                    measured = asyncio.run(load(url, n, 2 * n, args.tokens))
                    print(f"{n:3} streams  {url}  {measured.row()}", flush=True)

    if args.url:
        run(args.url)
        return
    with server(args.model) as url:
        run([url])
        for _ in range(args.rounds):
            measured = asyncio.run(load(url, 16, 48, args.tokens))
            served = measured.tokens / measured.seconds
            batch = batch_speed(args.model, args.tokens)
            print(
                f"served {served:.0f}, generate_batch {batch:.0f}: {served / batch:.2f}", flush=True
            )


if __name__ == "__main__":
    main()
