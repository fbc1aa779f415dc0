"""Finding models: bundled, folders, the Hugging Face cache, and a local server that is the Hub."""

import hashlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from gpt2np import Tokenizer
from gpt2np.hub import VOCABULARY_FILES, find_model, find_vocabulary

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ("config.json", "generation_config.json", "model.safetensors", "vocab.json", "merges.txt")


class Hub:
    """Serves repositories as huggingface.co does: model info, file tree, files by revision."""

    def __init__(self, repositories):
        self.repositories = repositories  # name → {file: bytes}, or an error code
        self.broken = "some/broken"
        self.requests = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                hub.requests.append(f"{self.command} {self.path}")
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request):
        path = request.path.split("?")[0].lstrip("/")
        name = next((n for n in self.repositories if f"{n}/" in f"{path}/"), None)
        content = self.repositories.get(name)
        if not isinstance(content, dict):
            code = content or "RepoNotFound"
            return self.send(request, 403 if code == "GatedRepo" else 404, {"X-Error-Code": code})
        if path.startswith("api/models/"):
            return self.send_json(request, self.listing(name, content, path))
        file = path.partition("/resolve/")[2].partition("/")[2]
        if file not in content:
            return self.send(request, 404, {"X-Error-Code": "EntryNotFound"})
        headers = {
            "ETag": f'"{hashlib.sha256(content[file]).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Content-Type": "application/octet-stream",
        }
        broken = name == self.broken and file == "model.safetensors"
        return self.send(request, 200, headers, content[file], cut=5000 if broken else None)

    def listing(self, name, content, path):
        if "/tree/" in path:
            return [
                {"type": "file", "path": file, "size": len(data), "oid": "0" * 40}
                for file, data in content.items()
            ]
        siblings = [{"rfilename": file} for file in content]
        return {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []}

    def send_json(self, request, content):
        self.send(request, 200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def send(self, request, status, headers, body=b"", cut=None):
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body[:cut])  # cut: the connection breaks there


@pytest.fixture
def files(bundled):
    return {name: (bundled / name).read_bytes() for name in FILES}


@pytest.fixture
def files_of_transformers_5(files, bundled, tmp_path_factory):
    """A model whose vocabulary is a tokenizer.json, as transformers 5 saves it."""
    folder = tmp_path_factory.mktemp("saved")
    Tokenizer.load(bundled).save(folder)
    kept = {name: data for name, data in files.items() if name not in ("vocab.json", "merges.txt")}
    return kept | {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}


@pytest.fixture
def hub(files, files_of_transformers_5):
    extra = {"pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x", "README.md": b"# GPT-2"}
    repositories = {
        "openai-community/gpt2": files | extra,
        "some/pickled": {"config.json": files["config.json"], "pytorch_model.bin": b"x"},
        "some/gated": "GatedRepo",
        "some/broken": files,
        "some/new": files_of_transformers_5,
        "some/words": {"vocab.json": b"{}", "config.json": b"{}"},
    }
    hub = Hub(repositories)
    yield hub
    hub.server.shutdown()


@pytest.fixture
def command(tmp_path):
    def run(url, *arguments, **env):
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "GPT2NP_M"))}
        variables |= {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), **env}
        return subprocess.run(
            [sys.executable, "-m", "gpt2np", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=variables,
        )

    return run


@pytest.fixture
def generate(command):
    def run(url, *arguments, **env):
        return command(url, "generate", "Once", "-n", "3", "--seed", "1", *arguments, **env)

    return run


@pytest.fixture
def tokenize(command):
    def run(url, *arguments, **env):
        return command(url, "tokenize", "--json", "Once upon", *arguments, **env)

    return run


def nowhere():
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


class TestDefaultModel:
    def test_is_fetched_once_and_then_costs_no_request(self, hub, generate):
        first = generate(hub.url)
        assert first.returncode == 0
        assert first.stderr.splitlines()[-3].endswith("model: openai-community/gpt2")
        fetched = {r.rpartition("/")[2] for r in hub.requests if "/resolve/" in r}
        assert fetched == set(FILES)  # and not the pickle, ONNX or README
        hub.requests.clear()
        second = generate(hub.url)
        assert second.stdout == first.stdout and not hub.requests
        assert generate(hub.url, HF_HUB_OFFLINE="1").stdout == first.stdout

    def test_unreachable_hub_means_the_bundled_model_and_says_so(self, generate):
        url = nowhere()
        result = generate(url)
        assert result.returncode == 0
        line = result.stderr.splitlines()[0]
        assert line.startswith("model: bundled (openai-community/gpt2 is not cached and " + url)
        assert "choose another with --model" in line

    def test_offline_mode_means_the_bundled_model_and_says_so(self, hub, generate):
        result = generate(hub.url, HF_HUB_OFFLINE="1")
        assert "model: bundled" in result.stderr and "HF_HUB_OFFLINE is set" in result.stderr
        assert not hub.requests

    def test_a_download_that_breaks_means_the_bundled_model(self, hub, generate):
        hub.broken = "openai-community/gpt2"
        result = generate(hub.url)
        assert result.returncode == 0 and "Traceback" not in result.stderr
        assert "model: bundled (openai-community/gpt2 is neither" in result.stderr

    def test_a_hub_that_hangs_is_given_up_after_three_seconds(self, generate):
        with socket.socket() as silent:  # accepts connections, never answers
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            start = time.monotonic()
            result = generate(f"http://127.0.0.1:{silent.getsockname()[1]}")
            seconds = time.monotonic() - start
        assert "model: bundled" in result.stderr and "within 3 seconds" in result.stderr
        assert seconds < 8

    def test_the_variable_names_another(self, hub, generate):
        result = generate(hub.url, GPT2NP_MODEL="bundled")
        assert result.stderr.startswith("model: bundled\n") and not hub.requests


class TestNamedModel:
    """What is named is found or an error; it never becomes another model."""

    def check(self, result, *words):
        lines = result.stderr.strip().splitlines()
        assert (result.returncode, result.stdout) == (1, "")
        assert lines[-1].startswith("gpt2np generate: error: ")
        for word in words:
            assert word in lines[-1]
        assert "Traceback" not in result.stderr

    def test_by_id(self, hub, generate):
        result = generate(hub.url, "--model", "openai-community/gpt2")
        assert result.returncode == 0 and "model: openai-community/gpt2" in result.stderr

    def test_unknown(self, hub, generate):
        self.check(generate(hub.url, "--model", "no/such"), "no model of that name", "HF_TOKEN")

    def test_gated(self, hub, generate):
        self.check(generate(hub.url, "--model", "some/gated"), "owner's permission", "HF_TOKEN")

    def test_without_safetensors(self, hub, generate):
        self.check(generate(hub.url, "--model", "some/pickled"), "has no model.safetensors")

    def test_a_download_that_breaks(self, hub, generate):
        self.check(generate(hub.url, "--model", "some/broken"), "can't be fetched", "bundled")

    def test_unreachable(self, generate):
        url = nowhere()
        self.check(generate(url, "--model", "distilgpt2"), "distilgpt2 is neither", url, "bundled")

    def test_offline(self, hub, generate):
        result = generate(hub.url, "--model", "distilgpt2", HF_HUB_OFFLINE="1")
        self.check(result, "HF_HUB_OFFLINE is set", "vocab.json")

    @pytest.mark.parametrize("name", ["a/b/c", "../x", "what is this?", "-x-/"])
    def test_impossible_names(self, hub, generate, name):
        self.check(generate(hub.url, f"--model={name}"), f"no folder {name}")
        assert not hub.requests

    @pytest.mark.parametrize("name", ["", "~nosuchuser/x", "x" * 300])
    def test_names_that_are_no_path(self, hub, generate, name):
        self.check(generate(hub.url, f"--model={name}"), "folder")
        assert not hub.requests

    def test_an_existing_folder_comes_first(self, hub, generate, tmp_path, files, monkeypatch):
        folder = tmp_path / "openai-community" / "gpt2"
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        monkeypatch.chdir(tmp_path)
        result = generate(hub.url, "--model", "openai-community/gpt2")
        assert result.returncode == 0 and not hub.requests

    def test_with_tokenizer_json_instead_of_vocab_json(self, hub, generate):
        result = generate(hub.url, "--model", "some/new")
        assert result.returncode == 0
        assert result.stdout == generate(hub.url, "--model", "bundled").stdout
        hub.requests.clear()
        assert generate(hub.url, "--model", "some/new").stdout == result.stdout
        assert not hub.requests


class TestVocabularyAlone:
    """Only the vocabulary's files are asked for; where and when is as for models."""

    @pytest.mark.parametrize(
        "arguments, names",
        [
            ([], {"vocab.json", "merges.txt"}),
            (["--model", "openai-community/gpt2"], {"vocab.json", "merges.txt"}),
            (["--model", "some/new"], {"tokenizer.json"}),
        ],
    )
    def test_is_fetched_once_and_without_weights(self, hub, tokenize, bundled, arguments, names):
        first = tokenize(hub.url, *arguments)
        assert first.returncode == 0, first.stderr
        expected = Tokenizer.load(bundled).encode("Once upon")
        assert json.loads(first.stdout)["ids"] == expected
        assert {r.rpartition("/")[2] for r in hub.requests if "/resolve/" in r} == names
        hub.requests.clear()
        assert tokenize(hub.url, *arguments).stdout == first.stdout and not hub.requests

    def test_of_a_model_in_the_cache_costs_no_request(self, hub, generate, tokenize):
        assert generate(hub.url).returncode == 0
        hub.requests.clear()
        assert tokenize(hub.url).returncode == 0 and not hub.requests

    def test_does_not_pass_for_the_model(self, hub, generate, tokenize):
        assert tokenize(hub.url).returncode == 0
        assert "model: openai-community/gpt2" in generate(hub.url).stderr
        assert any(request.endswith("/model.safetensors") for request in hub.requests)

    def test_offline_means_the_bundled_one_and_says_so(self, hub, tokenize):
        result = tokenize(hub.url, HF_HUB_OFFLINE="1")
        assert result.returncode == 0 and not hub.requests
        assert "bundled" in result.stderr and "HF_HUB_OFFLINE is set" in result.stderr

    def test_missing_on_the_hub(self, hub, tokenize):
        result = tokenize(hub.url, "--model", "some/words")
        assert result.returncode == 1 and result.stdout == ""
        expected = "has no vocabulary (tokenizer.json or vocab.json + merges.txt)"
        assert expected in result.stderr.splitlines()[-1]

    def test_a_file(self, bundled, monkeypatch):
        for file in (bundled / "vocab.json", str(bundled / "merges.txt")):
            assert str(find_vocabulary(file).folder) == str(file)
        monkeypatch.setenv("GPT2NP_MODEL", str(bundled / "vocab.json"))
        assert find_vocabulary().folder == bundled / "vocab.json"


def test_what_is_missing():
    there = {"vocab.json"}.__contains__
    assert VOCABULARY_FILES.missing({"vocab.json", "merges.txt"}.__contains__) == []
    assert VOCABULARY_FILES.missing({"tokenizer.json"}.__contains__) == []
    assert VOCABULARY_FILES.missing(there) != []


def test_bundled_in_a_checkout(bundled):
    source = find_model("bundled")
    assert (source.name, source.folder, source.notice) == ("bundled", bundled, None)
