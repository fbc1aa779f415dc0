"""Load a server for minutes with requests that end in every way, and watch its memory.

    python benchmarks/soak.py [--minutes 30] [--clients 16] [--model bundled]

Clients stream completions, wait for whole ones, disconnect, run into the timeout, or send errors.
Before that, each client sends the largest request, so that the largest batch has its memory. Every
minute, the program prints the server's anonymous memory, its file-backed pages (of weights and
libraries, which the kernel maps and drops as it likes), threads and open files. At the end, it
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
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

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


LARGEST = {
    "prompt": PROMPTS[-1],
    "max_tokens": 300,
    "n": 3,
    "ignore_eos": True,
    "logprobs": 5,
    "echo": True,
    "stream": False,
}


async def request(url: str, body: dict[str, Any], read_lines: float, seen: Counter[str]) -> None:
    """Send a request, and count what the answer says."""
    try:
        status, answer = await send(url, json.dumps(body).encode(), read_lines)
    except (OSError, IndexError):
        seen["connection lost"] += 1
        return
    is_whole = read_lines == float("inf")
    seen[str(status) if is_whole else "disconnected"] += 1
    if status in (200, 504):
        seen["sequences"] += body.get("n", 1)
    if status == 200 and is_whole:
        if b"data: [DONE]" not in answer and body["stream"]:
            seen["incomplete"] += 1
        usages = [json.loads(usage) for usage in re.findall(rb'"usage":({.*?})', answer)]
        for usage in usages:
            seen["prompt tokens"] += usage["prompt_tokens"]
            seen["generated tokens"] += usage["completion_tokens"]
        seen["cut off"] += not usages


async def client(url: str, rng: random.Random, until: float, seen: Counter[str]) -> None:
    """Send the largest request, then random requests, one after the other."""
    await request(url, LARGEST, float("inf"), seen)
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
            "stream_options": {"include_usage": True},
        }
        if rng.random() < 0.05:
            body |= rng.choice([{"temperature": -1}, {"prompt": 7}, {"stop": [""]}])
        read_lines = rng.randrange(1, 20) if rng.random() < 0.1 else float("inf")
        await request(url, body, read_lines, seen)


def figures(pid: int) -> str:
    """Return the memory, threads and open files of a process."""
    folder = Path("/proc", str(pid))
    status = (folder / "status").read_text(encoding="utf-8")
    kib = {name: int(re.search(rf"Rss{name}:\s+(\d+)", status)[1]) for name in ("Anon", "File")}  # type: ignore[index]
    threads = re.search(r"Threads:\s+(\d+)", status)[1]  # type: ignore[index]
    n_files = len(list((folder / "fd").iterdir()))
    return (
        f"{kib['Anon'] / 1024:.1f} MiB anonymous, {kib['File'] / 1024:.1f} MiB of files, "
        f"{threads} threads, {n_files} open files"
    )


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
    time.sleep(2)
    with urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    for name, what in (
        ("request_success", "sequences"),
        ("generation_tokens", "generated tokens"),
        ("prompt_tokens", "prompt tokens"),
    ):
        values = re.findall(rf"^gpt2np_{name}_total\S* (\S+)$", text, re.MULTILINE)
        print(f"{what}: server {sum(map(float, values)):.0f}, clients {seen[what]}")
    wanted = ("gpt2np_num", "gpt2np_request_success_total")
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
