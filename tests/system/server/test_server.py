"""`gpt2np serve`: OpenAI's protocol, exact results, limits, shutdown."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from helpers.server import running_server

httpx = pytest.importorskip("httpx")
for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)

PROMPTS = ["Once upon a time", "The fox", "A king", "In the", "", "1, 2, 3,", "“Où?” 🦊"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--model", "bundled") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@contextmanager
def server_and_client(folder, *arguments):
    with (
        running_server(folder, *arguments) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield server, client


def complete(client, **body):
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def read_events(client, **body):
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def generate(lm, prompt, **options):
    return lm.generate(prompt, **{"temperature": 1.0, "top_k": 0, "max_new_tokens": 16, **options})


def joined(lists):
    return list(chain.from_iterable(lists))


class TestCompletions:
    def test_the_text_is_that_of_generate(self, client, lm):
        for prompt in PROMPTS:
            answer = complete(client, prompt=prompt, seed=5, max_tokens=20, return_token_ids=True)
            expected = generate(lm, prompt, seed=5, max_new_tokens=20)
            [choice] = answer["choices"]
            assert choice["text"] == expected.text
            assert choice["token_ids"] == expected.ids
            assert choice["prompt_token_ids"] == expected.prompt_ids
            counts = len(expected.prompt_ids), len(expected.ids)
            assert tuple(answer["usage"].values()) == (*counts, sum(counts))

    def test_prompts_can_be_lists_of_texts_and_ids(self, client, lm):
        ids = [lm.encode_prompt(prompt) for prompt in PROMPTS]
        one_by_one = [complete(client, prompt=p, seed=1)["choices"][0]["text"] for p in PROMPTS]
        for prompt in (PROMPTS, ids):
            choices = complete(client, prompt=prompt, seed=1)["choices"]
            assert [choice["text"] for choice in choices] == one_by_one
            assert [choice["index"] for choice in choices] == list(range(len(PROMPTS)))
        assert complete(client, prompt=ids[0], seed=1)["choices"][0]["text"] == one_by_one[0]

    def test_several_choices_are_those_of_consecutive_seeds(self, client):
        choices = complete(client, prompt="The fox", n=3, seed=7)["choices"]
        single = [complete(client, prompt="The fox", seed=7 + i)["choices"][0] for i in range(3)]
        assert [c["text"] for c in choices] == [c["text"] for c in single]
        greedy = complete(client, prompt="The fox", n=3, temperature=0)["choices"]
        assert len(greedy) == 3
        assert len({choice["text"] for choice in greedy}) == 1

    @pytest.mark.parametrize(
        ("fields", "options"),
        [
            ({"temperature": 0}, {"temperature": 0.0}),
            ({"temperature": 0.7, "top_k": 5}, {"temperature": 0.7, "top_k": 5}),
            ({"top_k": -1, "top_p": 0.5}, {"top_p": 0.5}),
            ({"min_p": 0.2}, {"min_p": 0.2}),
            ({"typical_p": 0.4}, {"typical_p": 0.4}),
            ({"presence_penalty": 1, "frequency_penalty": 0.5},) * 2,
            ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
            ({"stop": ["a", " th"]}, {"stop": ["a", " th"]}),
            ({"stop_token_ids": [13, 262]}, {"stop_token_ids": [13, 262]}),
            ({"logit_bias": {"262": 8}}, {"logit_bias": {262: 8.0}}),
            ({"bad_words": ["the"]}, {"bad_words": ["the"]}),
            ({"ignore_eos": True, "min_tokens": 4}, {"ignore_eos": True, "min_new_tokens": 4}),
            ({"best_of": 4}, {"best_of": 4}),
            ({"n": 2, "best_of": 4}, {"num_return_sequences": 2, "best_of": 4}),
            (
                {"use_beam_search": True, "n": 3},
                {"num_beams": 3, "temperature": 0.0, "num_return_sequences": 3},
            ),
            ({"structured_outputs": {"regex": " [a-f]+"}}, {"regex": " [a-f]+"}),
            ({"structured_outputs": {"choice": [" yes", " no"]}}, {"choices": [" yes", " no"]}),
        ],
    )
    def test_fields_mean_the_options_of_generate(self, client, lm, fields, options):
        answer = complete(client, prompt="The fox", seed=3, **fields)
        expected = generate(lm, "The fox", seed=3, **options)
        texts = [completion.text for completion in (expected, *expected.alternatives)]
        assert [choice["text"] for choice in answer["choices"]] == texts
        reasons = {"eos": "stop"}.get(expected.finish_reason, expected.finish_reason)
        assert answer["choices"][0]["finish_reason"] == reasons

    def test_log_probabilities_with_echo(self, client, lm):
        """What lm-evaluation-harness needs: one entry per token and one for the new token."""
        ids = lm.tokenizer.encode("The fox ran to the river. 🦊")
        [choice] = complete(
            client, prompt=[ids], temperature=0, max_tokens=1, logprobs=1, echo=True, seed=1234
        )["choices"]
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(ids) + 1}
        assert logprobs["token_logprobs"][0] is None
        score = lm.score(ids)
        assert logprobs["token_logprobs"][1:-1] == pytest.approx(
            score.log_probabilities[1:].tolist()
        )
        assert all(
            logprob <= max(top.values()) and logprob in top.values()
            for logprob, top in zip(
                logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
            )
        )
        text = choice["text"]
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            if token.isascii() and not token.startswith("\\x"):
                assert text[offset:].startswith(token)
        [prompt_only] = complete(client, prompt=[ids], max_tokens=0, logprobs=1, echo=True)[
            "choices"
        ]
        assert prompt_only["text"] == "The fox ran to the river. 🦊"
        assert len(prompt_only["logprobs"]["tokens"]) == len(ids)

    def test_prompt_log_probabilities(self, client, lm):
        [choice] = complete(client, prompt="The fox ran", prompt_logprobs=2)["choices"]
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        expected = generate(lm, "The fox ran", prompt_logprobs=2).prompt_logprobs
        for entry, token in zip(rest, expected[1:], strict=True):
            assert entry[str(token.id)]["logprob"] == pytest.approx(token.logprob)

    def test_prompts_can_be_truncated(self, client):
        long = complete(client, prompt="A king and the fox", truncate_prompt_tokens=2, seed=1)
        short = complete(client, prompt=" the fox", seed=1)
        assert long["choices"][0]["text"] == short["choices"][0]["text"]


class TestStreams:
    def test_the_pieces_join_to_the_text(self, client):
        for prompt in PROMPTS:
            fields = {"prompt": prompt, "seed": 2, "max_tokens": 30, "logprobs": 2, "n": 2}
            whole = complete(client, **fields, return_token_ids=True)
            chunks = read_events(client, **fields, return_token_ids=True)
            for choice in whole["choices"]:
                parts = [
                    c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]
                ]
                assert "".join(part["text"] for part in parts) == choice["text"]
                assert joined(part["token_ids"] for part in parts) == choice["token_ids"]
                for name, values in choice["logprobs"].items():
                    assert joined(part["logprobs"][name] for part in parts) == values
                assert parts[-1]["finish_reason"] == choice["finish_reason"]
                assert all(part["finish_reason"] is None for part in parts[:-1])
                assert "\ufffd" not in "".join(part["text"] for part in parts[:-1])

    def test_echo_comes_first(self, client):
        fields = {"prompt": ["The fox", "A king"], "seed": 2, "echo": True, "logprobs": 0}
        whole = complete(client, **fields)["choices"]
        chunks = read_events(client, **fields)
        for choice in whole:
            parts = [
                c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]
            ]
            assert "".join(part["text"] for part in parts) == choice["text"]
            tokens = joined(part["logprobs"]["text_offset"] for part in parts)
            assert tokens == choice["logprobs"]["text_offset"]

    def test_usage_comes_last(self, client):
        fields = {"prompt": "The fox", "seed": 2, "stream_options": {"include_usage": True}}
        *chunks, last = read_events(client, **fields)
        assert {chunk["usage"] for chunk in chunks} == {None}
        assert last["choices"] == []
        assert last["usage"] == complete(client, prompt="The fox", seed=2)["usage"]


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"prompt": 5}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": [[]], "temperature": "hot"}, "temperature"),
            ({"temperature": -1}, "temperature"),
            ({"max_tokens": "16"}, "max_tokens"),
            ({"logprobs": 5000}, "logprobs"),
            ({"suffix": "x"}, "suffix"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"structured_outputs": {"json": {}}}, "structured_outputs.json"),
            ({"structured_outputs": {"regex": "("}}, "pattern"),
            ({"use_beam_search": True, "stream": True}, "use_beam_search"),
            ({"prompt": [[99999999]]}, "99999999"),
            ({"logit_bias": {"99999999": 1}}, "logit_bias"),
            ({"prompt": "a " * 5000}, "prompt"),
            ({"stop": [""]}, "stop"),
        ],
    )
    def test_a_bad_field_is_named(self, client, body, field):
        for stream in (False, True):
            response = client.post(
                "/v1/completions", json={**body, "stream": body.get("stream", stream)}
            )
            assert response.status_code == 400, response.text
            assert len(response.content) < 1000
            assert field in response.json()["error"]["message"]

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[" * 100_000, b'{"prompt": "\\ud800"}', b'{"temperature": NaN}', b"\xff\xfe"],
    )
    def test_malformed_bodies(self, client, content):
        response = client.post(
            "/v1/completions", content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 400
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    def test_large_bodies_are_refused(self, client):
        body = b'{"prompt": "' + b"a" * 100_000_000 + b'"}'
        headers = {"Content-Type": "application/json"}
        for content in (body, iter([body])):  # the second is sent in chunks
            response = client.post("/v1/completions", content=content, headers=headers)
            assert response.status_code == 413
            assert "16,777,216" in response.json()["error"]["message"]

    def test_unknown_fields_are_ignored(self, client):
        complete(client, prompt="The fox", seed=1, best=3, metadata={"a": 1}, user="me")

    def test_unknown_models_and_paths(self, client):
        response = client.post("/v1/completions", json={"model": "other"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert client.get("/v2").json()["error"]["message"] == "Not Found"


def connect(url, receive_buffer=None):
    """Connect to a server by a plain socket."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    host, _, port = url.removeprefix("http://").partition(":")
    connection.connect((host, int(port)))
    return connection


def http_request(path, body="", method="POST", headers=""):
    content = body.encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"gpt2np_{name}")
    )


LONG = {"prompt": "The fox", "max_tokens": 480, "ignore_eos": True}


class TestQueueAndCancellation:
    def test_a_disconnected_client_frees_its_place(self, server, client):
        for stream in (True, False):
            with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url) as impatient:
                body = {**LONG, "stream": stream, "n": 16}
                with impatient.stream(
                    "POST", "/v1/completions", json=body, timeout=0.2
                ) as response:
                    for _ in response.iter_bytes():
                        time.sleep(0.3)
                        raise httpx.ReadTimeout("enough")
            wait_until(lambda: metric(client, "num_requests_running") == 0, seconds=3)

    def test_a_client_that_reads_nothing_is_disconnected(self, tmp_path):
        arguments = ("--model", "bundled", "--max-queued", "1", "--timeout", "1")
        with server_and_client(tmp_path, *arguments) as (server, client):
            files = Path(f"/proc/{server.process.pid}/fd")
            complete(client, n=17)
            n_files = len(list(files.iterdir()))
            body = {**LONG, "n": 16, "logprobs": 50, "stream": True}
            with connect(server.url, receive_buffer=4096) as slow:
                slow.sendall(http_request("/v1/completions", json.dumps(body)))
                wait_until(lambda: metric(client, "num_requests_running") == 16)
                assert client.post("/v1/completions", json={"n": 17}).status_code == 503
                complete(client, max_tokens=1)  # the others go on
                # In time, the places and the connection are free.
                wait_until(lambda: client.post("/v1/completions", json={"n": 17}).is_success)
                wait_until(lambda: len(list(files.iterdir())) <= n_files)

    def test_a_full_queue_refuses_and_recovers(self, tmp_path):
        arguments = ("--model", "bundled", "--max-running", "2", "--max-queued", "2")
        with server_and_client(tmp_path, *arguments) as (_, client):
            threads = [
                threading.Thread(target=complete, args=[client], kwargs=LONG) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            wait_until(lambda: metric(client, "num_requests_running") == 2)
            time.sleep(0.1)
            response = client.post("/v1/completions", json=LONG)
            assert response.status_code == 503
            assert response.headers["Retry-After"]
            for thread in threads:
                thread.join()
            complete(client, prompt="The fox", seed=1)

    def test_a_request_that_takes_too_long_ends(self, tmp_path):
        arguments = ("--model", "bundled", "--timeout", "0.1")
        with server_and_client(tmp_path, *arguments) as (_, client):
            response = client.post("/v1/completions", json={**LONG, "n": 8})
            assert response.status_code == 504
            assert "0.1 seconds" in response.json()["error"]["message"]
            *_, last = read_events(client, **LONG, n=8)
            assert "0.1 seconds" in last["error"]["message"]

    def test_waiting_requests_leave_the_queue_at_once(self, tmp_path):
        arguments = ("--model", "bundled", "--max-running", "2", "--max-queued", "1200")
        with server_and_client(tmp_path, *arguments) as (server, client):
            started = threading.Thread(target=complete, args=[client], kwargs=LONG)
            started.start()
            wait_until(lambda: metric(client, "num_requests_running") == 1)
            with httpx.Client(base_url=server.url) as impatient:
                body = {**LONG, "n": 1000}
                with pytest.raises(httpx.ReadTimeout):
                    impatient.post("/v1/completions", json=body, timeout=0.5)
            wait_until(lambda: metric(client, "num_requests_waiting") == 0, seconds=2)
            assert metric(client, "num_requests_running") == 1
            started.join()

    def test_metrics_count_what_the_clients_saw(self, tmp_path):
        with server_and_client(tmp_path, "--model", "bundled") as (_, client):
            n_new = n_prompt = 0
            for i, prompt in enumerate(PROMPTS):
                counts = complete(client, prompt=prompt, seed=i, max_tokens=1 + i)["usage"]
                n_new += counts["completion_tokens"]
                n_prompt += counts["prompt_tokens"]
            assert metric(client, "request_queue_time_seconds_sum") == 0  # one at a time
            assert metric(client, "generation_tokens_total") == n_new
            assert metric(client, "prompt_tokens_total") == n_prompt
            assert metric(client, "request_success_total") == len(PROMPTS)
            for name in ("time_to_first_token", "request_queue_time", "e2e_request_latency"):
                assert metric(client, f"{name}_seconds_count") == len(PROMPTS)
            assert metric(client, "inter_token_latency_seconds_count") <= n_new - len(PROMPTS)

    def test_the_server_survives_its_worker_processes(self, tmp_path, lm):
        expected = generate(lm, "The fox", seed=1).text
        with server_and_client(tmp_path, "--model", "bundled", "--processes", "2") as (
            server,
            client,
        ):
            for _ in range(2):
                answer = complete(client, prompt="The fox", seed=1)
                assert answer["choices"][0]["text"] == expected
                children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
                for pid in " ".join(path.read_text() for path in children).split():
                    os.kill(int(pid), signal.SIGKILL)


class TestAccess:
    def test_a_key_is_needed(self, tmp_path):
        arguments = ("--model", "bundled", "--api-key", "secret", "--cors-origin", "http://a.b")
        with server_and_client(tmp_path, *arguments) as (_, client):
            assert client.get("/health").status_code == 200
            for path in ("/v1/models", "/metrics", "/docs", "/openapi.json", "/x"):
                assert client.get(path).status_code == 401
            headers = {"Authorization": "Bearer secret", "Origin": "http://a.b"}
            response = client.get("/v1/models", headers=headers)
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == "http://a.b"
            wrong = {"Authorization": "Bearer sécret".encode()}
            assert client.get("/v1/models", headers=wrong).status_code == 401

    def test_without_the_option_there_are_no_cors_headers(self, client):
        response = client.get("/v1/models", headers={"Origin": "http://a.b"})
        assert "access-control-allow-origin" not in response.headers

    def test_another_address_needs_a_key(self):
        result = serve("--host", "0.0.0.0", "--model", "bundled")
        assert result.returncode == 2
        assert "--api-key" in result.stderr

    def test_a_port_in_use(self, server):
        port = server.url.rpartition(":")[2]
        result = serve("--port", port, "--model", "bundled")
        assert result.returncode == 2
        assert port in result.stderr

    def test_a_model_that_does_not_exist(self, tmp_path):
        result = serve("--model", str(tmp_path / "none"), "--port", "0")
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1


def serve(*arguments):
    command = [sys.executable, "-m", "gpt2np", "serve", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "GPT2NP_API_KEY"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


class TestShutdown:
    @pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
    def test_running_requests_end_first(self, tmp_path, sig):
        with server_and_client(tmp_path, "--model", "bundled") as (server, client):
            fields = {"prompt": "The fox", "max_tokens": 300, "ignore_eos": True, "seed": 1}
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(complete, client, **fields)
                wait_until(lambda: metric(client, "num_requests_running") == 1)
                server.process.send_signal(sig)
                assert answer.result()["usage"]["completion_tokens"] == 300
            assert server.process.wait(10) == 0

    def test_late_requests_end_with_an_error(self, tmp_path):
        arguments = ("--model", "bundled", "--shutdown-timeout", "0.1")
        with server_and_client(tmp_path, *arguments) as (server, client):
            body = {"prompt": "The fox", "max_tokens": 480, "ignore_eos": True, "n": 16}
            with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                server.process.send_signal(signal.SIGTERM)
                *_, error, done = [line for line in lines if line]
            assert done == "data: [DONE]"
            assert "shutting down" in error
            assert server.process.wait(10) == 0


class TestOtherEndpoints:
    def test_tokenizer(self, client, lm):
        text = "The fox 🦊<|endoftext|>"
        ids = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert ids == lm.tokenizer.encode(text, allowed_special="all")
        assert client.post("/tokenize", json={"content": text}).json()["tokens"] == ids
        assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == text
        assert client.get("/tokenizer_info").json()["eos_token"] == "<|endoftext|>"

    def test_models_and_version(self, client):
        [model] = client.get("/v1/models").json()["data"]
        assert model["id"] == "bundled"
        assert client.get("/version").json()["version"]
        assert client.get("/health").status_code == 200
