"""Measure how long one hostile request delays other clients of `gpt2np serve`.

    python benchmarks/hostile_requests.py [--only PATTERN]

While one request runs, a client asks for /health again and again, each time on a new connection,
and another client reads a stream. The table has the worst latency of /health, the longest wait of
the stream for its next event, and the time and the status of the request itself. The model is the
bundled one, so the waits are those of the server rather than of the model.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

MAX_SECONDS = 5.0  # for one request
SETTLE = 0.5  # seconds before and after a request
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Watch:
    """The worst wait of a client since the last `reset`, the current wait included."""

    started: float = 0.0
    worst: float = 0.0

    def begin(self) -> None:
        """Start a wait."""
        self.started = time.perf_counter()

    def end(self) -> None:
        """End a wait."""
        self.worst = max(self.worst, time.perf_counter() - self.started)
        self.started = 0.0

    def reset(self) -> None:
        """Forget the waits so far; the current wait counts from now on."""
        self.worst = 0.0
        if self.started:
            self.begin()

    def read(self) -> float:
        """Return the worst wait, in seconds."""
        waiting = time.perf_counter() - self.started if self.started else 0.0
        return max(self.worst, waiting)


@contextmanager
def running_server() -> Iterator[tuple[str, int]]:
    """Run a server on a free port; yield its address."""
    command = [sys.executable, "-m", "gpt2np", "serve", "--model", "bundled", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        url = next(found[1] for x in process.stderr if (found := re.search(r" at (http\S+)", x)))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        address = urlsplit(url)
        yield address.hostname or "", address.port or 0
    finally:
        process.kill()
        process.wait()


def watch_health(address: tuple[str, int], watch: Watch, is_over: threading.Event) -> None:
    """Ask for /health again and again."""
    while not is_over.is_set():
        watch.begin()
        connection = http.client.HTTPConnection(*address, timeout=2 * MAX_SECONDS)
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
            continue  # the wait goes on
        finally:
            connection.close()
        watch.end()
        time.sleep(0.01)


def watch_stream(address: tuple[str, int], watch: Watch, is_over: threading.Event) -> None:
    """Read streams, one after the other."""
    fields = {"prompt": "The fox", "max_tokens": 500, "ignore_eos": True, "stream": True}
    content, headers = json.dumps(fields), {"Content-Type": "application/json"}
    while not is_over.is_set():
        watch.begin()
        connection = http.client.HTTPConnection(*address, timeout=2 * MAX_SECONDS)
        try:
            connection.request("POST", COMPLETIONS, content, headers)
            response = connection.getresponse()
            while response.readline() and not is_over.is_set():
                watch.end()
                watch.begin()
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()


def send(address: tuple[str, int], path: str, body: bytes, seconds: float = MAX_SECONDS) -> str:
    """Send a request and read the answer, at most for some seconds; return its status."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    status = b""
    with socket.create_connection(address, timeout=seconds) as connection:
        try:
            connection.sendall(head.encode() + body)
            deadline = time.perf_counter() + seconds
            while data := connection.recv(1 << 20):
                status = status or data[9:12]
                if time.perf_counter() > deadline:
                    raise TimeoutError
        except OSError:
            return f"{status.decode() or '—'}, dropped"
    return status.decode()


def send_several(n: int, path: str, body: bytes, seconds: float, address: tuple[str, int]) -> str:
    """Send a request `n` times at once, and drop it after some seconds."""
    arguments = (address, path, body, seconds)
    threads = [threading.Thread(target=send, args=arguments) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(3)  # the server may go on
    return "dropped"


def pause(_: tuple[str, int]) -> str:
    """Send nothing."""
    time.sleep(3)
    return "—"


def open_halfway(address: tuple[str, int]) -> str:
    """Open 1,200 connections that send half a request."""
    connections = []
    try:
        for _ in range(1200):
            connections.append(socket.create_connection(address, timeout=5))
            connections[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
    except OSError:
        pass
    time.sleep(3)
    for connection in connections:
        connection.close()
    return f"{len(connections)} opened"


def requests() -> dict[str, Callable[[tuple[str, int]], str]]:
    """Return the requests, by description; each is a function of the server's address."""
    ids, words = list(range(500)), [f"word{i}" for i in range(100_000)]
    letters = {letter: {"$ref": "#"} for letter in "abcdefghij"}
    texts = {f"property{i}": {"type": "string"} for i in range(2000)}
    bounded = {"type": "number", "minimum": -1.2345678, "maximum": 987654.321}
    large_pattern = "(.{0,50}a.{0,50}){1,20}"
    long_text = "The fox, 12 kings & the river. " * 400_000
    steered: dict[str, object] = {"interventions": [{"point": "blocks.*", "factor": 0.999}] * 3}
    steered |= {"n": 8, "max_tokens": 500, "ignore_eos": True}
    by_text: dict[str, object] = {"boundary": "text", "logprobs": 20}
    saliency: dict[str, object] = {"prompt": ids[:256], "token": 7, "steps": 64}
    fields: dict[str, tuple[str, object]] = {
        "prompt_logprobs 1000, 500 ids": (COMPLETIONS, {"prompt": ids, "prompt_logprobs": 1000}),
        "logprobs 1000, 500 tokens": (COMPLETIONS, {"logprobs": 1000, "max_tokens": 500}),
        "prompt_logprobs 20, 32 × 500 ids": (
            COMPLETIONS,
            {"prompt": [ids] * 32, "prompt_logprobs": 20, "max_tokens": 1},
        ),
        "echo, logprobs 20, 32 × 500 ids, stream": (
            COMPLETIONS,
            {"prompt": [ids] * 32, "echo": True, "logprobs": 20, "max_tokens": 1, "stream": True},
        ),
        "n 256, logprobs 20": (COMPLETIONS, {"n": 256, "logprobs": 20, "max_tokens": 40}),
        "n 1000": (COMPLETIONS, {"n": 1000, "max_tokens": 2, "prompt": ids}),
        "use_beam_search, n 64": (COMPLETIONS, {"n": 64, "use_beam_search": True}),
        "/tokenize, 10 MB": ("/tokenize", {"prompt": long_text[:10_000_000]}),
        "/tokenize, 1 MB": ("/tokenize", {"prompt": long_text[:1_000_000]}),
        "/detokenize, 4 million ids": ("/detokenize", {"tokens": [300] * 3_300_000}),
        "/detokenize, 200,000 ids": ("/detokenize", {"tokens": [300] * 200_000}),
        "2 million prompts": (COMPLETIONS, {"prompt": [[7]] * 2_000_000}),
        "200,000 prompts": (COMPLETIONS, {"prompt": [[7]] * 200_000}),
        "a prompt of 12 MB": (COMPLETIONS, {"prompt": long_text}),
        "stop, 100,000 texts": (COMPLETIONS, {"stop": words, "max_tokens": 100}),
        "bad_words, 100,000 texts": (COMPLETIONS, {"bad_words": words, "max_tokens": 100}),
        "n 1000, bad_words, 1,000 texts": (
            COMPLETIONS,
            {"n": 1000, "bad_words": words[:1000], "max_tokens": 2},
        ),
        "logit_bias, 4,000 ids, n 16": (
            COMPLETIONS,
            {"n": 16, "logit_bias": dict.fromkeys(map(str, range(4000)), 1)},
        ),
        "allowed_token_ids, 3 million": (COMPLETIONS, {"allowed_token_ids": [300] * 3_000_000}),
        "stop_token_ids, 3 million": (COMPLETIONS, {"stop_token_ids": [300] * 3_000_000}),
        "choice, 5,000 texts": (
            COMPLETIONS,
            {"structured_outputs": {"choice": [f" {w}" for w in words[:5000]]}},
        ),
        "regex (.{0,50}a.{0,50}){1,20}": (
            COMPLETIONS,
            {"structured_outputs": {"regex": large_pattern}, "max_tokens": 100},
        ),
        "schema, tenfold recursion": with_schema(letters, 100),
        "schema, 2,000 optional properties": with_schema(texts, 100),
        "schema, 300 bounded numbers": with_schema({f"p{i}": bounded for i in range(300)}, 100),
        "schema, (.{0,50}a.{0,50}){1,20}, 20 tokens": with_schema(
            {"a": {"type": "string", "pattern": large_pattern}}, 20
        ),
        "an unknown field of 5 million lists": (COMPLETIONS, {"metadata": [[]] * 5_000_000}),
        "500,000 messages": (CHAT, {"messages": [{"role": "user", "content": "a"}] * 400_000}),
        "/api/inspect, 500 ids": ("/api/inspect", {"prompt": ids, "n": 100}),
        "/api/explain, 30 ids": ("/api/explain", {"prompt": ids[:30]}),
        "interventions, n 8": (COMPLETIONS, {**steered, "prompt": "The fox"}),
        "interventions, n 8, 450 ids": (COMPLETIONS, {**steered, "prompt": ids[:450]}),
        "boundary text, n 64": (COMPLETIONS, {**by_text, "prompt": "The capit", "n": 64}),
        "boundary text, 450 ids, 64 prompts": (
            COMPLETIONS,
            {**by_text, "prompt": [f"{long_text[:i]} a" for i in range(1000, 1064)]},
        ),
        "boundary text, 3,000 spaces": (COMPLETIONS, {**by_text, "prompt": " " * 3000}),
        "/api/saliency, 256 ids, 64 steps": ("/api/saliency", saliency),
    }
    several = encoded({"bad_words": words, "max_tokens": 100})
    saliencies = partial(send_several, 8, "/api/saliency", encoded(saliency), 1.5)
    return {
        "none": pause,
        **{
            name: partial(send, path=path, body=encoded(body))
            for name, (path, body) in fields.items()
        },
        "8 × bad_words, dropped after 1.5 s": partial(send_several, 8, COMPLETIONS, several, 1.5),
        "8 × /api/saliency, dropped after 1.5 s": saliencies,
        "1,200 half-open connections": open_halfway,
    }


def with_schema(properties: Mapping[str, object], max_tokens: int) -> tuple[str, object]:
    """Return a request for an object with some of these properties."""
    schema = {"type": "object", "properties": properties}
    return COMPLETIONS, {"structured_outputs": {"json": schema}, "max_tokens": max_tokens}


def encoded(body: object) -> bytes:
    """Return a body as JSON, without spaces."""
    return json.dumps(body, separators=(",", ":")).encode()


def measure(name: str, request: Callable[[tuple[str, int]], str]) -> str:
    """Run a request against a new server; return a row of the table."""
    health, stream, is_over = Watch(), Watch(), threading.Event()
    with running_server() as address:
        watchers = [
            threading.Thread(target=watch_health, args=(address, health, is_over), daemon=True),
            threading.Thread(target=watch_stream, args=(address, stream, is_over), daemon=True),
        ]
        for watcher in watchers:
            watcher.start()
        time.sleep(2 * SETTLE)
        health.reset()
        stream.reset()
        started = time.perf_counter()
        outcome = request(address)
        seconds = time.perf_counter() - started
        time.sleep(SETTLE)
        row = f"| {name} | {health.read():.2f} | {stream.read():.2f} | {seconds:.1f} | {outcome} |"
        is_over.set()
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="Requests whose names match")
    args = parser.parse_args()
    print("| request | worst /health, s | worst wait of a stream, s | seconds | status |")
    print("|---|---:|---:|---:|---|")
    for name, request in requests().items():
        if re.search(args.only, name):
            print(measure(name, request), flush=True)


if __name__ == "__main__":
    main()
