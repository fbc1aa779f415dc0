"""Details of OpenAI's protocol and of HTTP on which clients rely."""

import signal
import threading
import time

import pytest
from helpers.server import running_server

httpx = pytest.importorskip("httpx")
for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server"), "--model", "bundled") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def metrics(server):
    return httpx.get(f"{server.url}/metrics").text


class TestHttp:
    def test_a_model_is_described_by_its_name(self, client):
        [model] = client.get("/v1/models").json()["data"]
        assert client.get("/v1/models/bundled").json() == model
        for name in ("openai-community/gpt2", "a/b/c", "bundled/"):
            response = client.get(f"/v1/models/{name}")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"

    def test_only_models_are_not_found_as_models(self, client):
        for path in ("/v2", "/playground/none.js", "/v1"):
            response = client.get(path)
            assert response.status_code == 404
            assert response.json()["error"]["code"] is None

    def test_responses_have_an_id_and_a_fingerprint(self, client):
        ids = []
        for path in ("/health", "/v1/models", "/none"):
            ids.append(client.get(path, headers={"X-Request-Id": "mine"}).headers["X-Request-Id"])
        response = client.post(COMPLETIONS, json={"max_tokens": 1})
        ids.append(response.headers["X-Request-Id"])
        assert response.json()["id"] == f"cmpl-{ids[-1]}"
        assert response.json()["system_fingerprint"].startswith("gpt2np-")
        assert len({*ids, "mine"}) == 5

    def test_head_is_get_without_a_body(self, client):
        for path in ("/", "/health", "/v1/models", "/metrics"):
            response = client.head(path)
            assert response.status_code == 200
            assert not response.content
            assert int(response.headers["Content-Length"])

    def test_other_methods_are_named(self, client):
        response = client.get(COMPLETIONS)
        assert response.status_code == 405
        assert response.headers["Allow"] == "POST"

    def test_a_missing_key_is_asked_for(self, tmp_path):
        with running_server(tmp_path, "--model", "bundled", "--api-key", "k") as server:
            response = httpx.get(f"{server.url}/v1/models")
            assert response.status_code == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"

    def test_other_requests_are_refused_during_shutdown(self, tmp_path):
        with running_server(tmp_path, "--model", "bundled") as server:
            body = {"prompt": "The fox", "n": 4, "max_tokens": 480, "ignore_eos": True}
            answers = []

            def send():
                answers.append(httpx.post(server.url + COMPLETIONS, json=body, timeout=60))

            thread = threading.Thread(target=send)
            thread.start()
            while 'num_requests_running{model_name="bundled"} 4' not in metrics(server):
                time.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            for path in ("/health", "/v1/models"):
                response = httpx.get(server.url + path)
                assert response.status_code == 503
                assert "shutting down" in response.json()["error"]["message"]
            thread.join()
            assert answers[0].status_code == 200
            assert server.process.wait(5) == 0
