"""`gpt2np serve` and strangers: hosts, bodies, connections."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

COMPLETIONS = "/v1/completions"


def connect(server):
    port = int(server.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=40)


class TestHosts:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            *[(name, 200) for name in ("localhost:8000", "LOCALHOST", "[::1]:80")],
            *[(name, 200) for name in ("Models.Example:1", "192.168.1.5:8000")],
            *[(name, 403) for name in ("evil.example:8000", "localhost.evil.com")],
            *[(name, 403) for name in ("127.0.0.1.evil.com", "", "[::1", "a@evil.example", "?")],
        ],
    )
    def test_only_known_names_are_answered(self, client, host, status):
        for path in ("/v1/models", "/health", "/", "/api/model"):
            response = client.get(path, headers={"Host": host})
            assert response.status_code == status
            assert ("allowed_hosts" in response.text) == (status == 403)
        body = {"prompt": "a", "max_tokens": 1}
        assert client.post(COMPLETIONS, json=body, headers={"Host": host}).status_code == status


class TestBodies:
    @pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded", None])
    def test_only_json_is_read(self, client, kind):
        headers = {} if kind is None else {"Content-Type": kind}
        for path in (COMPLETIONS, "/v1/chat/completions", "/tokenize", "/detokenize"):
            response = client.post(path, content=b'{"prompt": "a"}', headers=headers)
            assert response.status_code == 415
            assert "Content-Type" in response.json()["error"]["message"]
        headers = {"Content-Type": "application/JSON; charset=utf-8"}
        assert client.post("/tokenize", content=b'{"prompt": "a"}', headers=headers).is_success

    def test_who_sends_a_large_body_reads_the_answer(self, server):
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += b"Connection: close\r\nContent-Length: 20000000\r\n\r\n"
        with connect(server) as connection:
            connection.sendall(head + bytes(20_000_000))
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 413")

    def test_refusals_do_not_wait_for_the_body(self, server):
        refused = {
            "Host: evil.example\r\nContent-Length: 99": 403,
            "Host: localhost\r\nContent-Type: text/plain\r\nContent-Length: 99": 415,
            "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999999": 413,
        }
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(partial(self.check_refusal, server), *zip(*refused.items(), strict=True)))

    def check_refusal(self, server, headers, status):
        started = time.monotonic()
        with connect(server) as connection:
            connection.sendall(f"POST /tokenize HTTP/1.1\r\n{headers}\r\n\r\n{{".encode())
            answer = connection.recv(1 << 16)
            assert time.monotonic() - started < 0.8
            assert answer.startswith(f"HTTP/1.1 {status}".encode())
            assert b"connection: close" in answer.lower()
            connection.settimeout(8)
            rest = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert (answer + rest).endswith(b"}")

    def test_the_description_has_the_fields(self, client):
        description = client.get("/openapi.json").json()
        body = description["paths"][COMPLETIONS]["post"]["requestBody"]
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = description["components"]["schemas"][name]["properties"]
        assert {"prompt", "temperature", "structured_outputs"} <= set(fields)
        names = {part.partition('"')[0] for part in json.dumps(description).split("/schemas/")[1:]}
        assert names <= set(description["components"]["schemas"])
