"""`gpt2np serve`: OpenAI's protocol, exact results, limits, shutdown."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import httpx
import pytest
from helpers.command_line import run_here
from helpers.equal_results import assert_equal_results
from helpers.paths import CHECKOUT
from helpers.processes import children, wait_until
from helpers.server import Fork, running_server

from gpt2np.runtime.ranks import max_processes

PROMPTS = ["The fox", "", "1, 2, 3,", "“Où?” 🦊"]


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
            answer = complete(client, prompt=prompt, seed=5, max_tokens=12, return_token_ids=True)
            expected = generate(lm, prompt, seed=5, max_new_tokens=12)
            [choice] = answer["choices"]
            assert choice["text"] == expected.text
            assert choice["token_ids"] == expected.ids
            assert choice["prompt_token_ids"] == expected.prompt_ids
            counts = len(expected.prompt_ids), len(expected.ids)
            assert tuple(answer["usage"].values()) == (*counts, sum(counts))

    def test_prompts_can_be_lists_of_texts_and_ids(self, client, lm):
        ids = [lm.encode_prompt(prompt) for prompt in PROMPTS]
        fields = {"seed": 1, "max_tokens": 6}
        one_by_one = [complete(client, prompt=p, **fields)["choices"][0]["text"] for p in PROMPTS]
        for prompt in (PROMPTS, ids):
            choices = complete(client, prompt=prompt, **fields)["choices"]
            assert [choice["text"] for choice in choices] == one_by_one
            assert [choice["index"] for choice in choices] == list(range(len(PROMPTS)))
        assert complete(client, prompt=ids[0], **fields)["choices"][0]["text"] == one_by_one[0]

    def test_several_choices_are_those_of_consecutive_seeds(self, client):
        fields = {"prompt": "The fox", "max_tokens": 6}
        choices = complete(client, n=3, seed=7, **fields)["choices"]
        single = [complete(client, seed=7 + i, **fields)["choices"][0] for i in range(3)]
        assert [c["text"] for c in choices] == [c["text"] for c in single]

    def test_log_probabilities_with_echo(self, client, lm):
        """What lm-evaluation-harness needs: one entry per token and one for the new token."""
        ids = lm.tokenizer.encode("The fox ran to the river. 🦊")
        [choice] = complete(
            client, prompt=[ids], temperature=0, max_tokens=1, logprobs=1, echo=True, seed=1234
        )["choices"]
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(ids) + 1}
        assert logprobs["token_logprobs"][0] is None
        score = lm.score(ids, from_end_of_text=False)
        assert logprobs["token_logprobs"][1:-1] == pytest.approx(score.logprobs[1:].tolist())
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
        only = complete(client, prompt=[ids], max_tokens=0, logprobs=1, echo=True)
        [prompt_only] = only["choices"]
        assert prompt_only["text"] == "The fox ran to the river. 🦊"
        assert len(prompt_only["logprobs"]["tokens"]) == len(ids)

    def test_prompt_log_probabilities(self, client, lm):
        [choice] = complete(client, prompt="The fox ran", prompt_logprobs=2)["choices"]
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        expected = generate(lm, "The fox ran", prompt_logprobs=2).prompt_logprobs
        ids = lm.encode_prompt("The fox ran")
        logits = lm.model.forward([ids], logits_indices=range(len(ids)))
        for entry, token, row in zip(rest, expected[1:], logits, strict=False):
            assert entry[str(token.id)]["logprob"] == pytest.approx(token.logprob)
            ranks = {i: found["rank"] for i, found in entry.items()}
            assert ranks == {i: 1 + int((row > row[int(i)]).sum()) for i in entry}

    def test_top_logprobs_begin_with_the_token_itself(self, client):
        fields = {"prompt": "The fox", "seed": 1, "temperature": 2, "logprobs": 2, "max_tokens": 9}
        [choice] = complete(client, **fields)["choices"]
        logprobs = choice["logprobs"]
        first = [next(iter(top)) for top in logprobs["top_logprobs"]]
        assert first == logprobs["tokens"]

    @pytest.mark.parametrize(
        ("fields", "finish_reason", "stop_reason"),
        [
            ({"stop": ["xyz", " the"]}, "stop", " the"),
            ({"stop_token_ids": [13]}, "stop", 13),
            ({"max_tokens": 0}, "length", None),
            ({"logit_bias": {"4095": 100}}, "stop", None),  # the end-of-text id
            ({"structured_outputs": {"choice": [" yes"]}}, "stop", None),
        ],
    )
    def test_the_reason_of_the_end(self, client, fields, finish_reason, stop_reason):
        request = {"prompt": "The fox ran to", "max_tokens": 40, "temperature": 0, **fields}
        [first, *_] = complete(client, **request)["choices"]
        assert (first["finish_reason"], first["stop_reason"]) == (finish_reason, stop_reason)
        last = read_events(client, **request)[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == (finish_reason, stop_reason)


def parts_of(choice, chunks):
    return [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]


class TestStreams:
    def test_the_pieces_join_to_the_text(self, client):
        for prompt in PROMPTS:
            fields = {"prompt": prompt, "seed": 2, "max_tokens": 9, "logprobs": 2, "n": 2}
            whole = complete(client, **fields, return_token_ids=True)
            chunks = read_events(client, **fields, return_token_ids=True)
            for choice in whole["choices"]:
                parts = parts_of(choice, chunks)
                assert "".join(part["text"] for part in parts) == choice["text"]
                assert joined(part["token_ids"] for part in parts) == choice["token_ids"]
                assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"]
                for name, values in choice["logprobs"].items():
                    assert_equal_results(joined(part["logprobs"][name] for part in parts), values)
                assert parts[-1]["finish_reason"] == choice["finish_reason"]
                assert all(part["finish_reason"] is None for part in parts[:-1])
                assert "\ufffd" not in "".join(part["text"] for part in parts[:-1])

    def test_no_chunk_splits_a_character(self, client):
        request = {"prompt": "“Où?” 🦊", "seed": 4, "max_tokens": 99, "return_token_ids": True}
        chunks = read_events(client, **request, structured_outputs={"regex": "[🦊🐺é”]{20}"})
        parts = [chunk["choices"][0] for chunk in chunks]
        text = "".join(part["text"] for part in parts)
        assert len(text) == 20 < sum(len(part["token_ids"]) for part in parts)
        assert set(text) <= set("🦊🐺é”")

    def test_echo_comes_first(self, client):
        fields = {"prompt": ["The fox", "A king"], "seed": 2, "echo": True, "logprobs": 0}
        whole = complete(client, **fields)["choices"]
        chunks = read_events(client, **fields)
        for choice in whole:
            parts = parts_of(choice, chunks)
            assert "".join(part["text"] for part in parts) == choice["text"]
            tokens = joined(part["logprobs"]["text_offset"] for part in parts)
            assert tokens == choice["logprobs"]["text_offset"]

    def test_usage_comes_last(self, client):
        fields = {"prompt": "The fox", "seed": 2, "stream_options": {"include_usage": True}}
        *chunks, last = read_events(client, **fields)
        assert {chunk["usage"] for chunk in chunks} == {None}
        assert last["choices"] == []
        assert last["usage"] == complete(client, prompt="The fox", seed=2)["usage"]


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
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def metric(client, name):
    return metric_in(client.get("/metrics").text, name)


def metric_in(text, name):
    lines = text.splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"gpt2np_{name}")
    )


def growth_from_here(client):
    """Return a function of a metric's name: how much the metric has grown since this call."""
    before = client.get("/metrics").text
    return lambda name: metric(client, name) - metric_in(before, name)


LONG = {"prompt": "The fox", "max_tokens": 480, "ignore_eos": True}


class TestQueueAndCancellation:
    def test_a_disconnected_client_frees_its_place(self, server, client):
        for stream in (True, False):
            with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url) as impatient:
                body = {**LONG, "stream": stream, "n": 60}  # of which 44 wait
                with impatient.stream(
                    "POST", "/v1/completions", json=body, timeout=0.2
                ) as response:
                    for _ in response.iter_bytes():
                        time.sleep(0.3)
                        raise httpx.ReadTimeout("enough")
            for state in ("running", "waiting"):
                name = f"num_requests_{state}"
                wait_until(lambda name=name: metric(client, name) == 0, seconds=3)

    def test_a_client_that_reads_nothing_is_disconnected(self, tmp_path):
        arguments = ("--processes", "1", "--max-queued", "1", "--timeout", "3")
        arguments += ("--model", "bundled")
        with server_and_client(tmp_path, *arguments) as (server, client):
            files = Path(f"/proc/{server.process.pid}/fd")
            most = {"n": 17, "max_tokens": 1}
            complete(client, **most)
            n_files = len(list(files.iterdir()))
            body = {**LONG, "n": 16, "logprobs": 20, "stream": True}
            with connect(server.url, receive_buffer=4096) as slow:
                slow.sendall(http_request("/v1/completions", json.dumps(body)))
                wait_until(lambda: metric(client, "num_requests_running") == 16)
                assert client.post("/v1/completions", json=most).status_code == 503
                complete(client, max_tokens=1)  # the others go on
                # In time, the places and the connection are free.
                wait_until(lambda: client.post("/v1/completions", json=most).is_success)
                wait_until(lambda: len(list(files.iterdir())) <= n_files)

    def test_a_full_queue_refuses_and_recovers(self, tmp_path):
        arguments = ("--model", "bundled", "--max-running", "1", "--max-queued", "1")
        with server_and_client(tmp_path, *arguments) as (_, client):
            with ThreadPoolExecutor(2) as pool:
                first = pool.submit(complete, client, **LONG | {"max_tokens": 150})
                wait_until(lambda: metric(client, "num_requests_running") == 1)
                second = pool.submit(complete, client, **LONG | {"max_tokens": 10})
                wait_until(lambda: metric(client, "num_requests_waiting") == 1)
                response = client.post("/v1/completions", json=LONG)
                assert response.status_code == 503
                assert response.headers["Retry-After"]
            counts = [each.result()["usage"]["completion_tokens"] for each in (first, second)]
            assert counts == [150, 10]
            for name, value in {"n": 3, "prompt": ["a"] * 3}.items():  # more than there are places
                response = client.post("/v1/completions", json={name: value})
                assert response.status_code == 400 and response.json()["error"]["param"] == name
            complete(client, prompt="The fox", seed=1)

    def test_metrics_add_up_to_the_usage_of_all_kinds_of_requests(self, client):
        kinds = [{"n": 3}, {"temperature": 0}, {"prompt": ["The fox", "A king"], "n": 2}]
        kinds = [{"prompt": "The fox", "max_tokens": 5, **kind} for kind in kinds]
        growth = growth_from_here(client)
        usages = [complete(client, **kind)["usage"] for kind in kinds]
        for kind in kinds[:2]:
            fields = {**kind, "stream_options": {"include_usage": True}}
            usages.append(read_events(client, **fields)[-1]["usage"])
        n_prompt, n_new = (
            sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens")
        )
        assert growth("prompt_tokens_total") == n_prompt
        assert growth("generation_tokens_total") == n_new
        assert growth("request_success_total") == 3 + 1 + 4 + 3 + 1
        for name in ("time_to_first_token", "e2e_request_latency"):
            assert growth(f"{name}_seconds_count") == 3 + 1 + 4 + 3 + 1


def test_requests_while_the_models_processes_are_killed(tmp_path, lm):
    """They go on or end with an error, and the model goes on with one process."""
    arguments = ("--model", "bundled", "--processes", "2")
    with server_and_client(tmp_path, *arguments) as (server, client):
        expected = [generate(lm, "The fox", seed=1).text]
        assert texts(client) == expected
        with ThreadPoolExecutor(4) as pool:
            fields = {**LONG, "max_tokens": 100, "n": 2}
            requests = [pool.submit(read_events, client, **fields) for _ in range(2)]
            requests += [pool.submit(client.post, "/v1/completions", json=fields)]
            wait_until(lambda: metric(client, "num_requests_running") == 6)
            pids = children(server.process.pid)
            assert pids or max_processes() == 1  # one process computes here
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            *streams, response = [request.result(30) for request in requests]
        for events in streams:
            assert "error" in events[-1] or events[-1]["choices"][0]["finish_reason"]
        assert response.status_code in (200, 500)
        assert texts(client) == expected


def texts(client):
    return [c["text"] for c in complete(client, prompt="The fox", seed=1)["choices"]]


class TestSeveralModels:
    def test_requests_name_their_model(self, chat_client, lm):
        listed = [model["id"] for model in chat_client.get("/v1/models").json()["data"]]
        growth = growth_from_here(chat_client)
        with ThreadPoolExecutor(4) as pool:
            requests = [
                pool.submit(complete, chat_client, prompt="The fox", seed=1, **fields)
                for fields in ({}, *({"model": name} for name in (*listed, listed[1])))
            ]
        answers = [request.result() for request in requests]
        expected = generate(lm, "The fox", seed=1).text
        assert {answer["choices"][0]["text"] for answer in answers} == {expected}
        assert [a["model"] for a in answers] == [*listed[:1] * 2, *listed[1:] * 2]
        for name in listed:
            labels = f'{{finished_reason="length",model_name="{name}"}}'
            assert growth(f"request_success_total{labels}") == 2


def test_every_endpoint_is_described_in_the_guide(client):
    guide = [CHECKOUT / "docs" / "guide" / name for name in ("server.md", "playground.md")]
    text = "".join(path.read_text(encoding="utf-8") for path in guide)
    for path in client.get("/openapi.json").json()["paths"]:
        assert re.search(re.escape(path.split("/{")[0]) + r"(?![\w/])", text), path


class TestAccess:
    def test_a_key_is_needed(self, tmp_path):
        arguments = ("--model", "bundled", "--api-key", "clé", "--cors-origin", "http://a.b")
        with server_and_client(tmp_path, *arguments) as (_, client):
            assert client.get("/health").status_code == 200
            headers = {"Authorization": "Bearer clé".encode(), "Origin": "http://a.b"}
            paths = client.get("/openapi.json", headers=headers).json()["paths"]
            for path in {*paths, "/docs", "/openapi.json", "/x"} - {"/health"}:
                assert client.get(path).status_code == 401
                assert client.post(path, json={"prompt": "a"}).status_code == 401
            response = client.get("/v1/models", headers=headers)
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == "http://a.b"
            assert "X-Request-Id" in response.headers["access-control-expose-headers"]
            assert client.get("/v1/models").headers["WWW-Authenticate"] == "Bearer"
            other_name = {**headers, "Host": "a.example"}  # with a key, every name is answered
            assert client.get("/v1/models", headers=other_name).status_code == 200
            for scheme, key, status in (("bearer", "clé", 200), ("Bearer", "clè", 401)):
                headers = {"Authorization": f"{scheme} {key}".encode()}
                assert client.get("/v1/models", headers=headers).status_code == status
            assert client.options("/v1/models").status_code == 401
            preflight = {"Origin": "http://a.b", "Access-Control-Request-Method": "POST"}
            preflight["Access-Control-Request-Headers"] = "content-type,x-stainless-os"
            assert client.options("/v1/completions", headers=preflight).status_code == 200
            preflight["Origin"] = "http://c.d"
            response = client.options("/v1/completions", headers=preflight)
            assert response.status_code == 400
            assert "access-control-allow-origin" not in response.headers

    def test_without_the_option_there_are_no_cors_headers(self, client):
        response = client.get("/v1/models", headers={"Origin": "http://a.b"})
        assert "access-control-allow-origin" not in response.headers

    def test_a_request_cannot_add_headers(self, server, client):
        evil = "a\r\nX-Evil: 1\r\n\r\n"
        for fields in ({"model": evil}, {"request_id": evil, "user": evil}, {"seed": evil}):
            response = client.post("/v1/completions", json=fields)
            assert "x-evil" not in response.headers
            assert "\r\n" not in response.text
        for path in ("/v1/models%0d%0aX-Evil:1", "/v1/models/", "/docs/", "//a.b/docs"):
            with connect(server.url) as connection:
                headers = "X-Request-Id: <evil>\r\nOrigin: http://evil\r\n"
                connection.sendall(http_request(path, method="GET", headers=headers))
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 404")
            head, _, _ = answer.lower().partition(b"\r\n\r\n")
            assert b"evil" not in head
            assert b"location" not in head

    def test_the_log_holds_no_prompts(self, server, client):
        secret = "swordfish"
        requests = (
            {"prompt": f"My {secret}\x1b[2J\n", "seed": 1},
            {"prompt": [secret] * 2, "stream": True},
            {"prompt": secret * 5000},
            {"prompt": "a", "stop": secret, "temperature": -1},
            {"model": secret},
            {"structured_outputs": {"regex": f"({secret}"}},
            {"suffix": secret},
        )
        for body in requests:
            client.post("/v1/completions", json=body)
        client.post("/v1/completions", content=b'{"prompt": "' + secret.encode())
        client.post("/tokenize", json={"prompt": secret})
        log = server.log.read_text()
        assert "POST /v1/completions" in log
        assert secret not in log

    def test_a_port_in_use(self, server):
        port = server.url.rpartition(":")[2]
        result = run_here("serve", "--port", port, "--model", "bundled")
        assert result.returncode == 2
        assert port in result.stderr


class TestShutdown:
    def test_running_requests_end_first(self, tmp_path):
        with server_and_client(tmp_path, "--model", "bundled") as (server, client):
            body = {**LONG, "max_tokens": 60}
            with (
                ThreadPoolExecutor(1) as pool,
                client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer,
            ):
                lines = filter(None, answer.iter_lines())
                next(lines)
                whole = pool.submit(complete, client, **body)
                wait_until(lambda: metric(client, "num_requests_running") == 2)
                server.process.send_signal(signal.SIGTERM)
                *_, last, done = lines
                assert whole.result()["usage"]["completion_tokens"] == 60
            assert '"finish_reason":"length"' in last and done == "data: [DONE]"
            assert server.process.wait(10) == 0

    def test_two_signals_end_a_server_that_has_just_started(self, tmp_path):
        with running_server(tmp_path, "--model", "bundled") as server:
            for _ in range(2):
                server.process.send_signal(signal.SIGINT)
            assert server.process.wait(10) == 0
            assert "Traceback" not in server.log.read_text(encoding="utf-8")

    def test_a_signal_ends_a_download_of_the_model(self, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as hub:
            hub.settimeout(30)
            environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
            environment.pop("HF_HUB_OFFLINE", None)
            command = ["serve", "--model", "a/b", "--port", "0"]
            process = Fork([command, environment, str(tmp_path), os.devnull, os.devnull, ""])
            try:
                with hub.accept()[0]:  # which never gets an answer
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(3) == -signal.SIGTERM
            finally:
                process.kill()

    def test_a_second_signal_ends_the_server_at_once(self, tmp_path):
        with server_and_client(tmp_path, "--model", "bundled") as (server, _):
            body = json.dumps({**LONG, "n": 16, "prompt": ["The fox"] * 30})
            with connect(server.url) as connection:
                connection.sendall(http_request("/v1/completions", body))
                time.sleep(0.5)
                server.process.send_signal(signal.SIGTERM)
                with pytest.raises(subprocess.TimeoutExpired):
                    server.process.wait(0.3)
                server.process.send_signal(signal.SIGINT)
                assert server.process.wait(2) == 0
            assert "Traceback" not in server.log.read_text(encoding="utf-8")
            with pytest.raises(ConnectionRefusedError):
                connect(server.url)

    def test_late_requests_are_cut(self, tmp_path):
        arguments = ("--model", "bundled", "--shutdown-timeout", "0.1")
        with server_and_client(tmp_path, *arguments) as (server, client):
            body = {"prompt": "The fox", "max_tokens": 480, "ignore_eos": True, "n": 16}
            with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                server.process.send_signal(signal.SIGTERM)
                with pytest.raises(httpx.HTTPError):
                    list(lines)
            assert server.process.wait(10) == 0


class TestOtherEndpoints:
    def test_tokenizer(self, client, lm):
        text = "The fox 🦊<|endoftext|>"
        ids = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert ids == lm.tokenizer.encode(text, allowed_special="all")
        assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == text
        assert client.get("/tokenizer_info").json()["eos_token"] == "<|endoftext|>"
