"""An engine that takes too long or cannot run: the timeout and /health notice it."""

import asyncio
import json
import threading

import httpx

from gpt2np.server import engine


def answers(lm, *requests, timeout=0.2):
    """Send requests to an application in this process, one after the other; return the answers."""
    from gpt2np.server.app import Server, create_app
    from gpt2np.server.options import ServerOptions

    async def send():
        app = create_app(Server([lm], ServerOptions(timeout=timeout)))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = []
            for method, path, body in requests:
                found.append(await client.request(method, path, json=body))
                await asyncio.sleep(0.1)
            return found

    return asyncio.run(send())


HEALTH = ("GET", "/health", None)
COMPLETION = ("POST", "/v1/completions", {"max_tokens": 1})


def test_a_request_that_takes_too_long_ends(lm):
    body = {"prompt": "The fox", "max_tokens": 480, "ignore_eos": True, "n": 16}
    requests = [("POST", "/v1/completions", {**body, "stream": stream}) for stream in (False, True)]
    whole, stream = answers(lm, *requests, timeout=0.6)
    assert whole.status_code == 504 and "0.6 seconds" in whole.json()["error"]["message"]
    *_, last, done = stream.text.split("\n\n")[:-1]
    assert done == "data: [DONE]" and "0.6 seconds" in json.loads(last[6:])["error"]["message"]


def test_an_engine_that_makes_no_step_is_noticed(lm, monkeypatch):
    monkeypatch.setattr(engine.AsyncEngine, "_run", lambda self, model: None)
    # In time, the prompt reaches the engine.
    before, completion, after = answers(lm, HEALTH, COMPLETION, HEALTH, timeout=1)
    assert before.status_code == 200
    assert completion.status_code == 504
    assert "1 seconds" in completion.json()["error"]["message"]
    assert after.status_code == 503 and "stuck" in after.json()["error"]["message"]


def test_an_inspection_that_waits_too_long_is_no_stuck_engine(lm):
    may_end = threading.Event()
    waiting = engine.INSPECTION.submit(may_end.wait)
    inspection = ("POST", "/api/inspect", {"prompt": "a"})
    timed_out, health = answers(lm, inspection, HEALTH)
    may_end.set()
    waiting.result()
    assert (timed_out.status_code, health.status_code) == (504, 200)


def test_threads_that_cannot_start_are_noticed(lm, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        completion, health = answers(lm, COMPLETION, HEALTH)
    assert completion.status_code == 500
    assert health.status_code == 503 and "out of threads" in health.json()["error"]["message"]
    after = answers(lm, COMPLETION, HEALTH, timeout=60)
    assert [answer.status_code for answer in after] == [200, 200]
