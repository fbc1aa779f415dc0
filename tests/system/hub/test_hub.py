"""Find models: bundled, folders, the Hugging Face cache, and a local imitation of the Hub."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.forked_command import forked_commands
from helpers.hub_server import Hub, Repository, Trouble
from helpers.paths import CHECKOUT
from safetensors.numpy import load, save

from gpt2np import Tokenizer
from gpt2np.errors import ModelNotFoundError
from gpt2np.hub import find_model, find_vocabulary
from gpt2np.hub.model_files import NGRAM_TABLE_FILE, missing_files
from gpt2np.hub.repository import HubId, parse_hub_id

FILES = ("config.json", "generation_config.json", "model.safetensors", "vocab.json", "merges.txt")
WEIGHTS = "model.safetensors"
GPT2 = "openai-community/gpt2"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
NO_PAUSES = "import time; time.sleep = lambda _: None"  # between huggingface_hub's attempts


@pytest.fixture(scope="module")
def files():
    folder = CHECKOUT / "weights"
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def saved_by_transformers_5(files, bundled, tmp_path_factory):
    """A model with a tokenizer.json, as saved by transformers 5."""
    folder = tmp_path_factory.mktemp("saved")
    Tokenizer.load(bundled).save(folder)
    kept = {name: data for name, data in files.items() if name not in ("vocab.json", "merges.txt")}
    return kept | {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}


@pytest.fixture(scope="module")
def sharded(files):
    """The bundled model in two shards."""
    weights = load(files[WEIGHTS])
    shard_of = {name: SHARDS["h." in name] for name in weights}
    shards = {s: save({n: w for n, w in weights.items() if shard_of[n] == s}) for s in SHARDS}
    others = {name: data for name, data in files.items() if name != WEIGHTS}
    return others | shards | {INDEX: json.dumps({"weight_map": shard_of}).encode()}


@pytest.fixture
def hub(files, saved_by_transformers_5, sharded):
    extra = {
        "pytorch_model.bin": b"pickle",
        "onnx/model.onnx": b"x",
        "onnx/model.safetensors": b"x",
    }
    hot = files | {"generation_config.json": b'{"temperature": 1.5}'}
    no_shard = {name: data for name, data in sharded.items() if name != SHARDS[1]}
    repositories = {
        GPT2: Repository({"main": files | extra, "hot": hot, "refs/pr/1": hot}),
        "some/pickled": Repository({"main": {"config.json": b"{}", "pytorch_model.bin": b"x"}}),
        "some/private": Repository({"main": files}, token="hf_good"),
        "some/gated": Repository({"main": files}, error=(403, {"X-Error-Code": "GatedRepo"})),
        "some/forbidden": Repository(
            {"main": files}, error=(403, {"X-Error-Message": "The token may not read this"})
        ),
        "some/down": Repository({"main": files}, error=(503, {})),
        "some/new": Repository({"main": saved_by_transformers_5}),
        "some/drafted": Repository({"main": files | {NGRAM_TABLE_FILE: b"table"}}),
        "some/words": Repository({"main": {"vocab.json": b"{}", "config.json": b"{}"}}),
        "some/sharded": Repository({"main": sharded}),
        "some/shardless": Repository({"main": no_shard}),
    }
    hub = Hub(repositories, renamed={"gpt2": GPT2})
    yield hub
    hub.close()


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def without_settings():
    """Return the environment variables that neither choose a proxy nor a model."""
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return {k: v for k, v in kept.items() if not k.startswith(("HF_", "GPT2NP_M"))}


@pytest.fixture
def process(home):
    """Run a command like `command`, or `code`, in a process that has imported nothing before."""

    def run(url, *arguments, code=None, **env):
        program = ["-m", "gpt2np", *arguments] if code is None else ["-c", code]
        env = without_settings() | {"HF_ENDPOINT": url, "HF_HOME": str(home), **env}
        options = {"capture_output": True, "text": True, "timeout": 120, "env": env}
        done = subprocess.run([sys.executable, *program], **options)
        return subprocess.CompletedProcess(arguments, done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    with forked_commands(tmp_path_factory.mktemp("forked"), without_settings()) as forked:
        yield forked


@pytest.fixture
def command(forked, home):
    """command(url, "info", "gpt2", patch="…", VARIABLE="…"): run `gpt2np info gpt2`."""

    def run(url, *arguments, patch="", **env):
        settings = {"HF_ENDPOINT": url, "HF_HOME": str(home), **env}
        return forked.run(arguments, without_settings() | settings, patch)

    return run


@pytest.fixture
def generate(command):
    options = ("generate", "Once", "-n", "3", "--seed", "1")
    return lambda url, *more, **env: command(url, *options, *more, **env)


@pytest.fixture
def tokenize(command):
    return lambda url, *more, **env: command(url, "tokenize", "--json", "Once upon", *more, **env)


@pytest.fixture
def download(command):
    return lambda url, *more, **env: command(url, "info", "--json", *more, **env)


def fails(result, *words):
    """Assert exit code 1, no output, and a one-line error message with `words`."""
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"gpt2np {result.args[0]}: error: ")
    for word in words:
        assert word in line


def folder_of(result):
    """Return the folder that `gpt2np info --json` printed."""
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["folder"])


def nowhere():
    """Return an address at which no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


class TestDefaultModel:
    def test_is_fetched_once_and_then_costs_no_request(self, hub, generate):
        first = generate(hub.url)
        assert first.returncode == 0
        assert first.stderr.splitlines()[0] == f"model: {GPT2}"
        assert hub.fetched() == set(FILES)  # no pickle, no ONNX
        hub.forget()
        second = generate(hub.url)
        assert second.stdout == first.stdout and not hub.requests
        assert generate(hub.url, HF_HUB_OFFLINE="1").stdout == first.stdout

    def test_unreachable_hub_means_the_bundled_model_and_says_so(self, generate):
        url = nowhere()
        result = generate(url)
        assert result.returncode == 0
        line = result.stderr.splitlines()[0]
        expected = f"warning: the model is bundled: {GPT2} is neither a folder nor in the cache"
        assert line.startswith(expected) and f"the download from {url} failed" in line

    def test_offline_mode_means_the_bundled_model_and_says_so(self, hub, generate):
        result = generate(hub.url, HF_HUB_OFFLINE="1")
        assert "model: bundled" in result.stderr and "HF_HUB_OFFLINE is set" in result.stderr
        assert not hub.requests

    def test_a_download_that_breaks_means_the_bundled_model(self, hub, generate):
        hub.trouble = Trouble(cut=5000)
        result = generate(hub.url, patch=NO_PAUSES)
        assert result.returncode == 0 and "Traceback" not in result.stderr
        line = result.stderr.splitlines()[0]
        assert line.startswith(f"warning: the model is bundled: {GPT2} is in the cache")
        assert f"without {WEIGHTS}" in line and f"the download from {hub.url} failed" in line

    def test_a_hub_that_hangs_is_given_up_after_three_seconds(self, generate):
        with socket.socket() as silent:  # accepts connections, but never answers
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            start = time.monotonic()
            result = generate(url)
            seconds = time.monotonic() - start
        assert "model: bundled" in result.stderr and "timed out" in result.stderr
        assert seconds < 10  # huggingface_hub's limit for one attempt


class TestNames:
    def test_what_they_mean(self):
        assert parse_hub_id("gpt2") == parse_hub_id(GPT2) == HubId(GPT2)
        assert parse_hub_id("gpt2@main") == HubId(GPT2, "main")
        assert parse_hub_id("distilgpt2@refs/pr/1") == HubId("distilbert/distilgpt2", "refs/pr/1")
        assert parse_hub_id("a/b@v1.0") == HubId("a/b", "v1.0")
        assert HubId(GPT2).cache_names == [GPT2, "gpt2"] and HubId("a/b").cache_names == ["a/b"]
        assert str(HubId("a/b")) == "a/b" and str(HubId("a/b", "c")) == "a/b@c"

    @pytest.mark.parametrize("name", ["a/b/c", "../x", "what is this?"])
    def test_impossible(self, name, tmp_path, monkeypatch):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        with pytest.raises(
            ModelNotFoundError, match="and the name is not a valid id on the Hub"
        ) as info:
            find_model(name)
        assert str(info.value).startswith(f"there is no folder {name}")

    @pytest.mark.parametrize("name", ["", "~nosuchuser/x", "x" * 300])
    def test_no_path(self, hub, download, name):
        fails(download(hub.url, name), "folder")
        assert not hub.requests

    def test_the_old_name_serves_from_either_place(self, hub, download, home):
        folder = folder_of(download(hub.url, GPT2))
        hub.forget()
        assert folder_of(download(hub.url, "gpt2")) == folder
        cache = home / "hub"
        (cache / "models--openai-community--gpt2").rename(cache / "models--gpt2")
        for name in ("gpt2", GPT2, "gpt2@main", f"{GPT2}@main"):
            assert folder_of(download(hub.url, name)) == cache / "models--gpt2" / "snapshots" / (
                folder.name
            )
        assert not hub.requests


class TestFoldersAndFiles:
    """Existing folders and files come before the Hub."""

    @pytest.fixture(params=["openai-community/gpt2", "gpt2@main"])
    def model(self, request, tmp_path, files, monkeypatch):
        folder = tmp_path / request.param
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        monkeypatch.chdir(tmp_path)
        return request.param

    def test_an_existing_folder_comes_first(self, hub, download, model):
        assert folder_of(download(hub.url, model)) == Path(model).absolute()
        assert not hub.requests

    def test_the_file_of_weights_stands_for_its_folder(self, model):
        for find in (find_model, find_vocabulary):
            source = find(f"{model}/{WEIGHTS}")
            assert (source.name, source.path) == (f"{model}/{WEIGHTS}", Path(model))

    def test_other_files_do_not(self, hub, download, model):
        fails(
            download(hub.url, f"{model}/vocab.json"), "is a file; name the folder that contains it"
        )
        Path("alone").mkdir()
        Path(f"alone/{WEIGHTS}").touch()
        fails(download(hub.url, f"alone/{WEIGHTS}"), "is a file; name the folder")
        fails(download(hub.url, f"nowhere/{WEIGHTS}"), f"there is no file nowhere/{WEIGHTS}")
        assert not hub.requests

    def test_a_vocabularys_file(self, bundled, monkeypatch):
        for file in (bundled / "vocab.json", str(bundled / "merges.txt")):
            assert str(find_vocabulary(file).path) == str(file)
        monkeypatch.setenv("GPT2NP_MODEL", str(bundled / "vocab.json"))
        assert find_vocabulary().path == bundled / "vocab.json"

    def test_bundled_in_a_checkout(self, bundled):
        source = find_model("bundled")
        assert (source.name, source.path, source.fallback_reason) == ("bundled", bundled, None)


class TestRevisions:
    @pytest.mark.parametrize("kind", ["branch", "pull request", "short commit"])
    def test_is_fetched_once_and_apart_from_the_others(self, hub, download, kind):
        commit = hub.repositories[GPT2].commit("hot")
        named = {"branch": "hot", "pull request": "refs/pr/1"}.get(kind)
        name = f"{GPT2}@{named or commit[:8]}"
        folder = folder_of(download(hub.url, name))
        assert b"1.5" in (folder / "generation_config.json").read_bytes()
        assert folder.name == hub.repositories[GPT2].commit(named or commit[:8])
        hub.forget()
        for offline in ("0", "1"):
            assert folder_of(download(hub.url, name, HF_HUB_OFFLINE=offline)) == folder
        if kind == "branch":
            assert folder_of(download(hub.url, f"gpt2@{folder.name}")) == folder
        assert not hub.requests
        assert folder_of(download(hub.url, GPT2)) != folder

    def test_unknown(self, hub, download):
        fails(
            download(hub.url, "gpt2@v9"), f"{hub.url} does not serve {GPT2}@v9: 404", "/revision/v9"
        )
        unknown = "0" * 40
        fails(download(hub.url, f"gpt2@{unknown}"), f"/revision/{unknown}")


class TestShards:
    def test_all_that_the_index_names(self, hub, download, sharded):
        folder = folder_of(download(hub.url, "some/sharded"))
        assert {path.name for path in folder.iterdir()} == set(sharded)
        assert (folder / SHARDS[1]).read_bytes() == sharded[SHARDS[1]]
        hub.forget()
        assert folder_of(download(hub.url, "some/sharded")) == folder and not hub.requests

    def test_without_one_of_them_it_is_not_whole(self, hub, download):
        folder = folder_of(download(hub.url, "some/sharded"))
        (folder / SHARDS[1]).unlink()
        offline = download(hub.url, "some/sharded", HF_HUB_OFFLINE="1")
        fails(offline, "is in the cache", f"without {SHARDS[1]}")
        hub.forget()
        assert (folder_of(download(hub.url, "some/sharded")) / SHARDS[1]).exists()
        assert not any(SHARDS[0] in request for request in hub.requests)

    def test_one_that_is_not_on_the_hub(self, hub, download):
        fails(download(hub.url, "some/shardless"), f"has no {SHARDS[1]}, which gpt2np requires")


class TestRefusals:
    """A named model is found or an error; no other model replaces it."""

    def test_unknown(self, hub, generate):
        result = generate(hub.url, "--model", "no/such")
        fails(result, "there is no folder no/such, and no model that HF_TOKEN may read: 401")

    def test_private(self, hub, download, home):
        fails(download(hub.url, "some/private"), "no model that HF_TOKEN may read: 401")
        hub.forget()
        folder_of(download(hub.url, "some/private", HF_TOKEN="hf_good"))
        hub.forget()
        folder_of(download(hub.url, "some/private"))  # from the cache
        assert not hub.requests

    @pytest.mark.parametrize(
        "model, token, words",
        [
            (GPT2, "hf_invalid", ["does not serve", "401", "Unauthorized", "Invalid"]),
            ("some/gated", None, ["is gated; set HF_TOKEN to a token", "gated repo"]),
            (
                "some/forbidden",
                "x",
                ["not serve some/forbidden: 403", "The token may not read"],
            ),
            ("some/down", None, ["does not serve some/down", "503"]),
            ("some/words", None, ["has no model.safetensors, vocabulary (tokenizer.json or"]),
        ],
    )
    def test_by_the_hub(self, hub, download, home, model, token, words):
        variables = {"HF_TOKEN": token} if token else {}
        fails(download(hub.url, model, **variables), hub.url, *words)
        assert not list(home.rglob("blobs/*"))

    def test_without_safetensors(self, hub, download):
        hub.repositories["some/pickled"].revisions["main"] |= {"tokenizer.json": b"{}"}
        advice = "AutoModelForCausalLM.from_pretrained('some/pickled').save_pretrained('converted')"
        fails(download(hub.url, "some/pickled"), "has no model.safetensors", "a pickle", advice)
        assert not hub.fetched()

    def test_unreachable(self, generate, home):
        url = nowhere()
        words = ("distilgpt2 is neither", str(home / "hub"), url, "Connection refused")
        fails(generate(url, "--model", "distilgpt2"), *words)

    def test_offline(self, hub, generate, download, home):
        result = generate(hub.url, "--model", "distilgpt2", HF_HUB_OFFLINE="1")
        fails(result, "HF_HUB_OFFLINE is set", "vocab.json", "name a folder", str(home / "hub"))
        folder = folder_of(download(hub.url, "gpt2"))
        (folder / WEIGHTS).unlink()
        hub.forget()
        result = download(hub.url, "gpt2", HF_HUB_OFFLINE="1")
        fails(result, f"is in the cache {home / 'hub'} without model.safetensors")
        assert not hub.requests


def test_an_n_gram_table_comes_with_its_model(hub, download):
    """A repository may have a table for draft tokens; most have none."""
    folder = folder_of(download(hub.url, "some/drafted"))
    assert (folder / NGRAM_TABLE_FILE).read_bytes() == b"table"
    folder = folder_of(download(hub.url, "some/new"))
    assert not (folder / NGRAM_TABLE_FILE).exists()


def test_connection_that_always_breaks_is_an_error(hub, download, files, home):
    hub.trouble = Trouble(cut=5000)
    result = download(hub.url, "gpt2", patch=NO_PAUSES)
    fails(result, "without model.safetensors", "the download from", "failed", "try again")
    hub.trouble = Trouble()
    folder = folder_of(download(hub.url, "gpt2"))
    assert (folder / WEIGHTS).read_bytes() == files[WEIGHTS]
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


class TestDisk:
    @pytest.mark.parametrize("place", ["/dev/null/home", "file"])
    def test_a_cache_that_cannot_be_written(self, hub, download, tmp_path, place):
        (tmp_path / "file").touch()
        home = tmp_path / place
        result = download(hub.url, "gpt2", HF_HOME=str(home))
        fails(result, f"cannot read or write {home}", "set HF_HOME")

    def test_no_space_left(self, hub, command, home):
        patch = (
            "import errno, huggingface_hub.file_download as there\n"
            "def http_get(*_, **__): raise OSError(errno.ENOSPC, 'No space left on device')\n"
            "there.http_get = http_get\n"
        )
        result = command(hub.url, "info", "--json", "gpt2", patch=patch)
        fails(result, f"{home / 'hub'} (No space left on device)", "free space")


def test_proxy_that_does_not_answer_does_not_show_its_password(download):
    address = nowhere().removeprefix("http://")
    result = download("http://hub.test", "gpt2", HTTP_PROXY=f"http://me:secret@{address}")
    fails(result, "the download from http://hub.test failed")
    assert "secret" not in result.stderr


def test_local_and_cached_models_are_found_without_numpy_and_http_client(hub, download, process):
    folder_of(download(hub.url, "gpt2"))
    code = (
        "import sys; from gpt2np.hub import find_model; find_model('gpt2'); find_model('bundled')\n"
        "names = {m.split('.')[0] for m in sys.modules}\n"
        "print(names & {'httpx', 'httpx2', 'requests', 'numpy'})"
    )
    assert process(hub.url, code=code).stdout == "set()\n"


class TestVocabularyAlone:
    """Only the vocabulary's files are requested; otherwise as for models."""

    @pytest.mark.parametrize(
        "arguments, names",
        [
            ([], {"config.json", "vocab.json", "merges.txt"}),
            (["--model", "some/new"], {"config.json", "tokenizer.json"}),
        ],
    )
    def test_is_fetched_once_and_without_weights(self, hub, tokenize, bundled, arguments, names):
        first = tokenize(hub.url, *arguments)
        assert first.returncode == 0, first.stderr
        expected = Tokenizer.load(bundled).encode("Once upon")
        assert json.loads(first.stdout)["ids"] == expected
        assert hub.fetched() == names
        hub.forget()
        assert tokenize(hub.url, *arguments).stdout == first.stdout and not hub.requests

    def test_is_whole_only_with_all_its_files(self, hub, tokenize):
        """After the failure of a small file, all are requested again, since it may change ids."""
        files = hub.repositories["openai-community/gpt2"].revisions["main"]
        tokens = {"4096": {"content": "Once upon", "special": False}}
        config = json.dumps({"added_tokens_decoder": tokens}).encode()
        files["tokenizer_config.json"] = config
        hub.trouble.refused = "tokenizer_config.json"
        assert tokenize(hub.url, "--model", "gpt2").returncode == 1
        hub.trouble.refused = None
        ids = json.loads(tokenize(hub.url, "--model", "gpt2").stdout)["ids"]
        assert ids == [4096]

    def test_does_not_pass_for_the_model(self, hub, generate, tokenize):
        assert tokenize(hub.url).returncode == 0
        assert f"model: {GPT2}" in generate(hub.url).stderr
        assert WEIGHTS in hub.fetched()


def test_what_is_missing():
    def missing(weights, *names):
        return missing_files(names.__contains__, weights=weights)

    assert missing(False, "vocab.json", "merges.txt") == missing(False, "tokenizer.json") == []
    assert missing(False, "vocab.json") != []
    assert missing(True, "config.json", "tokenizer.json") == [WEIGHTS]
    assert missing(True, "config.json", "tokenizer.json", INDEX) == []


def test_a_folder_of_that_name_comes_before_the_bundled_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bundled").mkdir()
    assert find_model("bundled").path == Path("bundled")


def test_binary_reference_in_the_cache_is_named_as_damage(hub, download, home):
    refs = home / "hub/models--openai-community--gpt2/refs"
    refs.mkdir(parents=True)
    (refs / "main").write_bytes(b"\xff\x00\xfe")
    fails(download(hub.url, "gpt2"), "the cache of", "is damaged", "remove the folder")


def test_variable_that_huggingface_hub_cannot_read_is_one_line(hub, process):
    result = process(hub.url, "info", "--json", "a/b", HF_HUB_DOWNLOAD_TIMEOUT="abc")
    fails(result, "cannot read a variable HF_")
