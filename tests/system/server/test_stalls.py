"""One hostile request to `gpt2np serve` delays neither /health nor another client's stream.

They once delayed others by five times `LIMIT` and more: bodies and lists had no limits.
"""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest
from helpers.server import running_server

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
LIMIT = 2.0  # seconds, for a machine with other work; alone, it is 0.1 to 0.3


def encode(body):
    """Return a body as JSON, before anybody waits: this holds the lock of Python's interpreter."""
    return json.dumps(body, separators=(",", ":")).encode()


def post(server, path, content, timeout=60):
    """Send a request; wait for the answer, or drop it after `timeout` seconds."""
    with suppress(httpx.HTTPError):
        httpx.post(server.url + path, content=content, headers=JSON, timeout=timeout)


def worst_waits(server, send):
    """Return the longest waits for /health and for a stream's next event while `send` runs."""
    waits = {"health": 0.0, "stream": 0.0}
    has_begun, is_over = threading.Event(), threading.Event()

    def watch_health():
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not is_over.wait(0.02):
                started = time.monotonic()
                client.get("/health")
                waits["health"] = max(waits["health"], time.monotonic() - started)

    def watch_stream():
        fields = {"prompt": "The fox", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not is_over.is_set():
                last = time.monotonic()
                with client.stream("POST", COMPLETIONS, json=fields) as response:
                    for _ in response.iter_lines():
                        has_begun.set()
                        waits["stream"] = max(waits["stream"], time.monotonic() - last)
                        last = time.monotonic()
                        if is_over.is_set():
                            return

    with ThreadPoolExecutor(2) as pool:
        watchers = [pool.submit(watch_health), pool.submit(watch_stream)]
        assert has_begun.wait(60)
        send()
        is_over.set()
        for watcher in watchers:
            watcher.result()
    return waits


# Bodies below the limit of 4 MiB, which the server reads and checks.
IDS, WORDS = list(range(500)), [f"word{i}" for i in range(100_000)]
SCHEMA = {"type": "string", "pattern": "(.{0,50}a.{0,50}){1,20}"}
LARGE = {
    "prompt_logprobs": (COMPLETIONS, {"prompt": [IDS] * 4, "prompt_logprobs": 1000}),
    "logprobs": (COMPLETIONS, {"logprobs": 1000, "max_tokens": 500, "n": 8}),
    "tokens": ("/detokenize", {"tokens": [300] * 1_040_000}),
    "prompts": (COMPLETIONS, {"prompt": [[7]] * 800_000}),
    "stop": (COMPLETIONS, {"stop": WORDS, "max_tokens": 400}),
    "schema": (COMPLETIONS, {"structured_outputs": {"json": SCHEMA}, "max_tokens": 8}),
    "interventions": (
        COMPLETIONS,
        {"interventions": [{"point": "blocks.*", "factor": 0.999}] * 3, "max_tokens": 4, "n": 8},
    ),
    "an unknown field": (COMPLETIONS, {"other": [[]] * 1_390_000}),
}


@pytest.mark.parametrize("name", LARGE)
def test_nobody_waits_for_a_large_request(server, name):
    path, body = LARGE[name]
    content = encode(body)
    waits = worst_waits(server, lambda: post(server, path, content))
    assert max(waits.values()) < LIMIT


def test_nobody_waits_for_dropped_requests(server):
    """Their preparation does not go on, nor does it fill the pool that others need."""
    content = encode({"bad_words": WORDS, "max_tokens": 100})

    def send():
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: post(server, COMPLETIONS, content, timeout=1.5), range(8)))

    waits = worst_waits(server, send)
    started = time.monotonic()
    assert httpx.post(server.url + COMPLETIONS, json={"max_tokens": 1}, timeout=60).is_success
    assert max(*waits.values(), time.monotonic() - started) < LIMIT


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "a" * 4_100_000}),
        ("/api/saliency", {"prompt": IDS[:200], "token": 5, "steps": 8}),
    ],
)
def test_chats_begin_beside_long_work(chat_client, path, body):
    content = encode(body)
    with ThreadPoolExecutor(1) as pool:
        url = f"{chat_client.base_url}{path}"
        long = pool.submit(httpx.post, url, content=content, headers=JSON, timeout=60)
        time.sleep(0.6)
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        response = chat_client.post("/v1/chat/completions", json=body)
        assert response.is_success and not long.done() and long.result().is_success
    assert response.elapsed.total_seconds() < LIMIT


HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_half_open_connections_stop_nobody(tmp_path):
    with ExitStack() as stack:
        limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))"
        arguments = ("--model", "bundled")
        server = stack.enter_context(running_server(tmp_path, *arguments, before=limit))
        address = server.url.removeprefix("http://").split(":")
        for i in range(160):
            connection = stack.enter_context(socket.create_connection(address, timeout=40))
            connection.sendall(HEADERS + b"Content-Length: 99\r\n\r\n{" * (i % 2))
            if i % 40 == 0:
                assert httpx.get(f"{server.url}/health", timeout=10).status_code == 200
        assert "Traceback" not in server.log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("limit", "n_connections"), [((1024, -1), 2048), ((1024, 1024), 512), ((256, 256), 64)]
)
def test_few_open_files_mean_few_connections(monkeypatch, limit, n_connections):
    resource = pytest.importorskip("resource")
    from gpt2np.server.guard import Connection, limit_connections

    monkeypatch.setattr(resource, "getrlimit", lambda _: limit)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(Connection, "max_number", 0)
    limit_connections()
    assert Connection.max_number == n_connections
