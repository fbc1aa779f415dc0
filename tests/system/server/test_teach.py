"""POST /api/teach: a model learns a page while its client listens, and forgets it afterwards."""

import asyncio
import gc
import json
import os
import re
import signal
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.paths import CHECKOUT
from helpers.playground import in_sight, look_at, set_inputs, wait_for_end
from helpers.processes import children, is_running, wait_until
from helpers.random_models import save_byte_model
from helpers.server import running_server
from safetensors.numpy import save

from gpt2np import load
from gpt2np.chat.template import ChatTemplate
from gpt2np.errors import InvalidArgumentError
from gpt2np.server import teach
from gpt2np.server.app import _stream_response
from gpt2np.server.engine import Engine, Metrics
from gpt2np.server.options import ServerOptions
from gpt2np.training.teach import N_STEPS, SNAPSHOTS

PAGE = (CHECKOUT / "examples/walkthrough/texts/the_fox_and_the_bell.txt").read_text()
PARAGRAPH = PAGE.partition("\n\n")[0]
PROMPT = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}


@contextmanager
def teaching(client, text=PAGE):
    """Yield the events of a page that is taught, until the block ends."""
    with client.stream("POST", "/api/teach", json={"text": text}) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        yield (json.loads(line[6:]) for line in lines if line.startswith("data: "))


def write(client, model="bundled", **fields):
    response = client.post("/v1/completions", json={**PROMPT, "model": model, **fields})
    return response.status_code, response.json().get("choices", [{}])[0].get("text")


def trainings(pid):
    """The trainings that a process has started; it may also have forked workers of the model."""
    return [child for child in children(pid) if "teach_stdin" in command(child)]


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def press(tab, label):
    tab.locator("#teach button").get_by_text(label, exact=True).click()


def focused(tab, what="textContent"):
    return tab.evaluate(f"document.activeElement.{what}")


def test_a_page_is_learned_beside_the_old_model_and_forgotten(tmp_path):
    save_byte_model(tmp_path / "model", n_embd=128, n_inner=256)
    old, page = str(tmp_path / "model"), "The fox ran."
    with (
        running_server(tmp_path, "--model", old) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        before = write(client, old)
        with teaching(client, page) as events:
            first = next(events)
            assert first["n_steps"] == N_STEPS and first["n_tokens"] == len(page)
            found = []
            for event in events:
                if "is_done" in event:
                    break
                found.append(event)
                assert event["is_ready"] == (event["step"] in SNAPSHOTS)
                if event["step"] == SNAPSHOTS[0]:
                    assert write(client, first["model"])[0] == 200
            losses = [event["loss"] for event in found]
            assert [event["step"] for event in found] == list(range(N_STEPS + 1))
            assert losses[0] > 2.5 and max(losses[-5:]) < 0.2
            fields = {"prompt": "The", "max_tokens": len(" fox ran.")}
            assert write(client, first["model"], **fields) == (200, " fox ran.")
            assert write(client, old) == before
            assert not trainings(server.process.pid)
            names = [model["id"] for model in client.get("/v1/models").json()["data"]]
            assert names == [old]  # the page is its client's own
        wait_until(lambda: write(client, first["model"])[0] == 404)
        assert write(client, old) == before


def test_a_stopped_training_keeps_what_it_has_learned(server, client):
    with teaching(client) as events:
        name = next(events)["model"]
        assert next(events)["step"] == 0
        assert client.post("/api/teach/stop", json={"model": name}).status_code == 200
        *_, before, last = iter(events.__next__, {"is_done": True})
        assert last["is_ready"] and last["step"] == before["step"] < 5  # no step more
        assert write(client, name)[0] == 200
        assert not trainings(server.process.pid)


def test_at_the_time_limit_the_model_keeps_what_it_has_learned(lm, monkeypatch):
    monkeypatch.setattr(teach, "_MAX_SECONDS", 0)
    engine = Engine(lm, Metrics(), ServerOptions())

    async def events():
        stream = teach.teach_page(teach.Taught(), engine, "A fox.", lambda: False)
        async with aclosing(stream):
            return [json.loads((await anext(stream))[6:]) for _ in range(4)]

    _, *steps, done = asyncio.run(events())
    assert [step["is_ready"] for step in steps] == [False, True] and done["is_done"]
    assert [step["step"] for step in steps] == [0, 0]


def test_a_client_that_closes_in_the_middle_ends_the_process(server, client):
    with teaching(client) as events:
        name = next(events)["model"]
        assert next(events)["step"] == 0
        assert len(trainings(server.process.pid)) == 1
    wait_until(lambda: not trainings(server.process.pid))
    assert write(client, name)[0] == 404


def test_a_second_page_is_refused_while_one_is_learned(client):
    with teaching(client) as events:
        next(events)
        response = client.post("/api/teach", json={"text": PAGE})
        assert response.status_code == 503 and "another page" in response.text
    wait_until(lambda: _starts(client))


def _starts(client):
    with client.stream("POST", "/api/teach", json={"text": PAGE}) as response:
        return response.status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [("a", "it needs 2 tokens"), ("x" * 20_001, "at most 20000 characters")],
)
def test_a_text_of_the_wrong_length_is_refused(client, text, message):
    response = client.post("/api/teach", json={"text": text})
    assert response.status_code == 400 and message in response.text


def test_the_first_512_tokens_of_a_longer_page_are_learned(client):
    with teaching(client, "fox " * 600) as events:
        first = next(events)
        assert first["n_tokens"] == 512 and first["n_left_out"] > 80


@pytest.mark.parametrize(
    "options", [{}, {"exact": True}, {"weights": "int8"}, {"processes": 2, "draft": "none"}]
)
def test_a_taught_model_keeps_the_options_and_its_memory_is_freed(options):
    lm = load("bundled", **options)
    engine = Engine(lm, Metrics(), ServerOptions(), ChatTemplate("{{ messages }}", {}, "a test"))
    data = save({name: 2 * array for name, array in lm.model.weights.items()})
    taught = teach._taught(engine, "taught", data)

    def kept(engine):
        lm = engine.lm
        names = ("exact", "weight_dtype", "dtype", "processes", "config")
        source = (lm.draft_source.draft, lm.draft_source.folder)
        others = (lm.defaults, lm.eos_token_ids, engine.template)
        return [getattr(lm.model, name) for name in names], source, others

    assert kept(taught) == kept(engine)
    np.testing.assert_allclose(
        taught.lm.model.weights["wpe.weight"], 2 * lm.model.weights["wpe.weight"]
    )
    taught.lm.generate("Once", max_new_tokens=2)
    model = weakref.ref(taught.lm.model)
    group = taught.lm.model._group
    workers = [process.pid for process, _ in group._workers] if group else []
    del group
    gc.disable()
    try:
        del taught
        assert model() is None
        wait_until(lambda: not any(map(is_running, workers)))
    finally:
        gc.enable()


def test_a_stream_is_closed_if_the_client_disconnects_while_a_part_is_sent():
    is_sent, is_closed = asyncio.Event(), []

    async def source():
        try:
            yield b"second"
        finally:
            is_closed.append(True)

    async def receive():
        await is_sent.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body") == b"second":
            is_sent.set()
            await asyncio.sleep(60)

    async def respond():
        response = _stream_response(b"first", source())
        await response({"type": "http"}, receive, send)
        return bool(is_closed)  # asyncio closes all generators at its end

    assert asyncio.run(respond())


def test_a_model_that_is_too_large_is_refused(lm, monkeypatch):
    monkeypatch.setattr(teach, "_MAX_WEIGHTS", 5_000_000)
    with pytest.raises(InvalidArgumentError, match="has 6 million weights; teaching takes up to 5"):
        teach._check(lm, [1, 2, 3])


def test_other_streams_go_on_while_a_page_is_learned(client):
    fields = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True, "seed": 1}
    with ThreadPoolExecutor(1) as pool, teaching(client) as events:
        next(events), next(events)

        def read():
            with client.stream("POST", "/v1/completions", json=fields) as response:
                return sum(line.startswith("data: {") for line in response.iter_lines())

        assert pool.submit(read).result(60) > 50


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_leaves_no_process(tmp_path, kind):
    with (
        running_server(tmp_path, "--model", "bundled") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        teaching(client, PARAGRAPH) as events,
    ):
        next(events), next(events)
        (child,) = trainings(server.process.pid)
        os.kill(server.process.pid, kind)
        server.process.wait(20)
        wait_until(lambda: not is_running(child))
        assert "Traceback" not in server.log.read_text()


class TestPage:
    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        tab = open_shared_tab(height=720, expected=["400 (Bad Request)"], reduced_motion="reduce")
        set_inputs(tab, {"max_tokens": 4})
        tab.click("#teach-button")
        return tab

    def test_every_run_of_five_words_of_the_page_is_marked(self, tab):
        script = """async pairs => {
            const { copied } = await import("./playground/teach.js");
            return pairs.map(([text, page]) => {
                const { count, marks } = copied(text, page);
                return [count, ...marks.map(([start, end]) => text.slice(start, end))];
            });
        }"""
        found = {
            ("and then the Fox ran home.", "The fox ran off. Then the fox ran!"): [4],
            ("don’t stop", "they don’t"): [1],
            ("x a B c d e, y b c d e f g!", "a b c d e f g"): [6, "a B c d e", "b c d e f g"],
            ("a b c d e f x", "a b c d e; c d e f x"): [5, "a b c d e f x"],
            ("a b", "c d"): [0],
            ("", ""): [0],
        }
        assert tab.evaluate(script, [*found]) == [*found.values()]

    def test_escape_and_an_empty_page(self, tab):
        """Escape keeps a lesson in sight, and the browser asks for a page."""
        tab.fill("#teach-text", "")
        said = tab.inner_text(".teach-says")
        press(tab, "Teach")
        assert tab.inner_text(".teach-says") == said and focused(tab, "id") == "teach-text"
        tab.fill("#teach-text", "A fox ran.")
        press(tab, "Teach")
        tab.locator("#teach figcaption", has_text="Loss").wait_for()
        tab.keyboard.press("Escape")
        assert tab.is_visible("#teach")
        tab.click("#teach-button")  # shut, it goes on above the picture
        step = r"Teaching: It reads your .*: (\d+) of"
        before = int(re.match(step, tab.inner_text(".taught"))[1])
        wait_until(lambda: int(re.match(step, tab.inner_text(".taught"))[1]) > before + 1)
        tab.click("#teach-button")
        press(tab, "Stop and keep")
        tab.locator(".taught", has_text="has learned your page").wait_for()
        tab.click(".taught button")  # as it was, for the other tests
        tab.locator(".taught").wait_for(state="hidden")

    def test_stop_keeps_the_model_and_the_next_page_replaces_it(self, tab):
        tab.fill("#teach-text", PARAGRAPH)
        press(tab, "Teach")
        tab.locator(".machine-says", has_text="Untaught → taught").wait_for()
        tab.locator(".machine-blocks button").first.press("Enter")
        with tab.expect_request("**/api/inspect") as asked:  # of the model in the picture
            tab.locator(".target.spot").first.press("Enter")
        assert asked.value.post_data_json["model"].startswith("bundled taught ")
        press(tab, "Stop and keep")
        tab.locator(".taught", has_text="This model has learned your page.").wait_for()
        assert re.match(r"It stopped after \d+ of 60 times", tab.inner_text(".teach-says"))
        tab.fill("#teach-text", "a")
        press(tab, "Teach")
        tab.locator(".teach-says.wrong", has_text="the page is too short").wait_for()
        assert focused(tab, "id") == "teach-text"
        assert tab.is_hidden(".taught") and not tab.locator("#teach dt").count()

    @pytest.fixture(scope="class")
    def byte_server(self, tmp_path_factory):
        """A server, and the names of its two models."""
        folder = tmp_path_factory.mktemp("server")
        names = [f"{folder}/{name}" for name in ("model", "other")]
        for name in names:
            save_byte_model(Path(name), n_embd=192, n_inner=384, n_positions=256)
        with running_server(folder, "--model", names[0], "--model", names[1]) as server:
            yield server, *names

    def test_teach_then_forget(self, byte_server, open_tab):
        server, model, _ = byte_server
        tab = open_tab(url=server.url, height=720, reduced_motion="reduce", glows=True)
        tab.fill("#prompt", "Once upon a time")
        set_inputs(tab, {"temperature": 0, "max_tokens": 90})
        tab.click("#teach-button")
        tab.fill("#teach-text", PARAGRAPH[:90])
        press(tab, "Teach")
        assert focused(tab) == "Stop and keep"
        tab.locator("#teach dt", has_text="Before").wait_for()
        tab.locator("#teach dt", has_text=f"After {N_STEPS} times").wait_for(timeout=200_000)
        tab.locator(".taught", has_text="has learned your page").wait_for()
        assert focused(tab) == "Watch it write ▷"
        says = tab.inner_text("#teach [role=status]")
        assert re.match(r"It repeats (\d\d) words of your page in a row", says)
        assert "roots of an old oak tree" in tab.locator("#teach dd mark").last.inner_text()
        assert tab.locator("#teach dd").first.locator("mark").count() == 0
        assert "→" in tab.inner_text(".machine-bars")  # the picture has the lesson's effect
        assert tab.inner_text(".machine-says") == "Untaught → taught"
        points = tab.locator("#teach polyline").get_attribute("points").split()
        heights = [float(point.split(",")[1]) for point in points]
        assert len(points) == N_STEPS + 1 and heights[0] == 0 and heights[-1] > 90
        for width, height in [(1280, 720), (390, 844)]:
            tab.set_viewport_size({"width": width, "height": height})
            tab.evaluate("document.getElementById('teach').scrollIntoView()")
            assert width < 1000 or in_sight(tab, ".machine-canvas", whole=True)
            for shown in (".teach-says", "figure", "dl > :last-child"):
                box = tab.locator(f"#teach {shown}").bounding_box()
                assert box["y"] >= 0 and box["y"] + box["height"] <= height
        set_inputs(tab, {"max_tokens": 6})
        with tab.expect_request("**/v1/completions") as asked:
            press(tab, "Watch it write ▷")
        name = asked.value.post_data_json["model"]
        assert name.startswith(f"{model} taught ")
        wait_for_end(tab)
        look_at(tab, 2)
        tab.wait_for_selector("#glow-says:not(:empty)")
        tab.click(".taught button")
        tab.locator(".taught").wait_for(state="hidden")
        assert tab.evaluate("document.activeElement.id") == "generate"
        assert tab.is_hidden("#teach figure") and not tab.locator("#teach dd").count()
        assert tab.is_hidden("#glow-says")  # it was about the old text
        with httpx.Client(base_url=server.url, timeout=60) as client:
            wait_until(lambda: write(client, name)[0] == 404)
        with tab.expect_request("**/v1/completions") as asked:
            tab.click("#generate")
        assert asked.value.post_data_json["model"] == model

    def test_another_model_forgets_the_page(self, byte_server, open_tab):
        server, _, other = byte_server
        tab = open_tab(url=server.url)
        tab.click("#teach-button")
        tab.fill("#teach-text", "A fox ran.")
        press(tab, "Teach")
        tab.locator("#teach figcaption", has_text="Loss").wait_for()
        press(tab, "Stop and keep")
        tab.locator(".taught", has_text="has learned your page").wait_for()
        tab.select_option("#model", other)
        tab.locator(".taught").wait_for(state="hidden")
        with tab.expect_request("**/v1/completions") as asked:
            tab.click("#generate")
        assert asked.value.post_data_json["model"] == other
        tab.close()
