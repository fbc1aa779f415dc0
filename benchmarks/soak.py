"""Load a server for minutes with requests that end in every way, and watch its memory.

    python benchmarks/soak.py [--minutes 30] [--clients 16] [--model bundled]

Clients stream completions, wait for whole ones, disconnect, run into the timeout, or send errors.
Every minute, the program prints the server's memory, threads and open files. At the end, it
compares the metrics with what the clients saw, and ends the server amid requests.
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
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

PROMPTS = ("Once upon a time", "The fox", "A king and his sons", "1, 2, 3,", "🦊", "In the " * 60)


async def send(url: str, body: bytes, read_lines: float) -> tuple[int, bytes]:
    """Send a request and read at most `read_lines` lines of the answer. Returns status and body."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 24)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        lines: list[bytes] = []
        async for line in reader:
            lines.append(line)
            if len(lines) >= read_lines:
                break
        return status, b"".join(lines)
    finally:
        writer.close()


async def client(url: str, rng: random.Random, until: float, seen: Counter[str]) -> None:
    """Send random requests, one after the other."""
    while time.monotonic() < until:
        body = {
            "prompt": rng.choice(PROMPTS),
            "max_tokens": rng.choice([1, 16, 64, 300]),
            "seed": rng.randrange(1 << 30),
            "temperature": rng.choice([0, 0.8, 1]),
            "n": rng.choice([1, 1, 1, 3]),
            "logprobs": rng.choice([None, None, 0, 5]),
            "echo": rng.random() < 0.2,
            "stream": rng.random() < 0.6,
        }
        if rng.random() < 0.05:
            body |= rng.choice([{"temperature": -1}, {"prompt": 7}, {"stop": [""]}])
        read_lines = rng.randrange(1, 20) if rng.random() < 0.1 else float("inf")
        try:
            status, answer = await send(url, json.dumps(body).encode(), read_lines)
        except (OSError, IndexError):
            seen["connection lost"] += 1
            continue
        kind = "disconnected" if read_lines != float("inf") else str(status)
        seen[kind] += 1
        if kind == "200" and not body["stream"]:
            seen["generated"] += json.loads(answer)["usage"]["completion_tokens"]
        if kind == "200" and body["stream"] and b"data: [DONE]" not in answer:
            seen["incomplete"] += 1


def figures(pid: int) -> str:
    """Return the memory, threads and open files of a process."""
    folder = Path("/proc", str(pid))
    status = (folder / "status").read_text(encoding="utf-8")
    rss = int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]
    threads = re.search(r"Threads:\s+(\d+)", status)[1]  # type: ignore[index]
    return f"{rss / 1024:.1f} MiB, {threads} threads, {len(list((folder / 'fd').iterdir()))} files"


async def run(url: str, pid: int, minutes: float, n_clients: int) -> Counter[str]:
    """Run all clients, and print figures each minute."""
    started, seen = time.monotonic(), Counter[str]()
    until = started + 60 * minutes
    clients = [
        asyncio.create_task(client(url, random.Random(i), until, seen)) for i in range(n_clients)
    ]
    while time.monotonic() < until:
        await asyncio.sleep(min(60, max(0, until - time.monotonic())))
        print(f"{(time.monotonic() - started) / 60:5.1f} min: {figures(pid)}", flush=True)
    await asyncio.gather(*clients)
    return seen


def main() -> None:
    """Run the load and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--model", default="bundled")
    args = parser.parse_args()
    command = [sys.executable, "-m", "gpt2np", "serve", "--model", args.model, "--port", "0"]
    process = subprocess.Popen([*command, "--timeout", "20"], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    found = None
    while found is None:
        found = re.search(r" at (http://\S+)$", process.stderr.readline())
    url = found[1]
    seen = asyncio.run(run(url, process.pid, args.minutes, args.clients))
    print(dict(seen))
    address = urlsplit(url)
    import urllib.request

    time.sleep(2)
    with urllib.request.urlopen(f"http://{address.netloc}/metrics") as answer:
        text = answer.read().decode()
    wanted = ("gpt2np_num", "gpt2np_request_success", "gpt2np_generation_tokens_total")
    print("\n".join(line for line in text.splitlines() if line.startswith(wanted)))

    async def end_amid_requests() -> Counter[str]:
        seen = Counter[str]()
        clients = [
            asyncio.create_task(client(url, random.Random(i), time.monotonic() + 2, seen))
            for i in range(args.clients)
        ]
        await asyncio.sleep(1)
        process.send_signal(signal.SIGTERM)
        await asyncio.gather(*clients)
        return seen

    print("SIGTERM amid requests:", dict(asyncio.run(end_amid_requests())), process.wait(60))


if __name__ == "__main__":
    main()
