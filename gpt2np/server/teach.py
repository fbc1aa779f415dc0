"""Fine-tuning on a page of text while a client listens: the events of POST /api/teach.

The taught model lives as long as the connection: a client that disconnects forgets it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex

from safetensors.numpy import load

from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2
from gpt2np.server.engine import LONG_WORK, PREPARATION, Engine, Metrics, UnavailableError, run_on
from gpt2np.server.replies import Json, event
from gpt2np.training.teach import N_STEPS, request_bytes

_MAX_TOKENS = 512  # of a page
_MAX_WEIGHTS = 20_000_000  # a training takes 16 bytes for each, and up to 0.3 GB for the page
_MAX_SECONDS = 300.0  # then the step that runs is the last
_GRACE = 60.0  # seconds for this step
_MAX_TAUGHT = 8  # models at a time
_MAX_RUNNING = 4  # sequences of a taught model
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from gpt2np.training.teach import teach_stdin
teach_stdin()
"""


@dataclass
class Taught:
    """The taught models of a server.

    Attributes:
        engines: the engine of each model, by a name that only its client knows.
        training: held while a model is trained, so that only one is.
        to_stop: the model whose training ends after the step that runs.
    """

    engines: dict[str, Engine] = field(default_factory=dict)
    training: asyncio.Lock = field(default_factory=asyncio.Lock)
    to_stop: str = ""


async def teach_page(
    taught: Taught, engine: Engine, text: str, is_ending: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Teach a model a text; yield the events, and then wait for the client to disconnect.

    The first event has the name of the taught model, which exists from the first event with
    `is_ready` on, and how many of the text's tokens are learned: the first 512 at most. Each
    further event has the number of steps taken, and the loss after them.

    Raises:
        InvalidArgumentError: the model is too large, or the text is too short.
        UnavailableError: another page is being taught, or there are too many taught models.
        GPT2NPError: the training has failed.
    """
    lm = engine.lm
    ids = await run_on(PREPARATION, lm.tokenizer.encode, text, disallowed_special=())
    n_left_out = max(0, len(ids) - _MAX_TOKENS)
    ids = ids[:_MAX_TOKENS]
    _check(lm, ids)
    if taught.training.locked():
        raise UnavailableError("the server is learning another page; try again in a few seconds")
    if len(taught.engines) >= _MAX_TAUGHT:
        raise UnavailableError(f"{_MAX_TAUGHT} pages are learnt; one must be forgotten first")
    name = f"{lm.name} taught {token_hex(8)}"
    try:
        training = _train(lm, ids, lambda: taught.to_stop == name)
        async with taught.training, aclosing(training) as messages:
            counts = {"n_tokens": len(ids), "n_left_out": n_left_out, "n_steps": N_STEPS}
            yield event({"model": name, **counts})
            async for message, data in messages:
                if data:
                    taught.engines[name] = await run_on(LONG_WORK, _taught, engine, name, data)
                yield event({**message, "is_ready": bool(data)})
                if is_ending():
                    return
        del data  # the engine has a copy
        yield event({"is_done": True})
        while not is_ending():
            await asyncio.sleep(1)
            yield b": kept\n\n"  # fails if the client is gone
    finally:
        taught.engines.pop(name, None)


def _check(lm: LanguageModel, ids: Sequence[int]) -> None:
    n_weights = sum(array.size for array in lm.model.weights.values())
    if n_weights > _MAX_WEIGHTS:
        raise InvalidArgumentError(
            f"{lm.name} has {n_weights / 1e6:,.0f} million weights; teaching takes up to "
            f"{_MAX_WEIGHTS / 1e6:,.0f} million, as the bundled model has fewer",
            param="model",
        )
    if len(ids) < 2:
        raise InvalidArgumentError("the page is too short: it needs 2 tokens", param="text")


async def _train(
    lm: LanguageModel, ids: Sequence[int], is_stopped: Callable[[], bool]
) -> AsyncGenerator[tuple[Json, bytes], None]:
    """Run the training in a process; yield each of its messages, with the weights that follow it.

    However the caller ends, the process does, too. If this process is killed, the other one ends
    after its step.
    """
    model = lm.model
    request = await run_on(PREPARATION, request_bytes, model.config, model.weights, ids)
    pipe = asyncio.subprocess.PIPE
    arguments = ("-c", _PROGRAM, *sys.path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=pipe, stdout=pipe
    )
    assert process.stdin and process.stdout
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _MAX_SECONDS
    timer = loop.call_at(deadline + _GRACE, process.kill)
    step = 0
    try:
        process.stdin.write(request)
        with suppress(asyncio.IncompleteReadError):
            while line := await process.stdout.readline():
                message = json.loads(line)
                data = await process.stdout.readexactly(message.pop("n_bytes"))
                step = message["step"]
                yield message, data
                if is_stopped() or loop.time() > deadline:
                    process.stdin.close()
                else:
                    process.stdin.write(b"\n")
        if await process.wait():
            raise GPT2NPError(
                f"the training ended after {step} of {N_STEPS} steps: one step took more than "
                f"{_GRACE:g} seconds, or memory ran out"
            )
    finally:
        timer.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _taught(engine: Engine, name: str, data: bytes) -> Engine:
    """Return an engine that differs from another in the model's name and weights."""
    lm = engine.lm
    weights = {name: array.astype(lm.model.dtype) for name, array in load(data).items()}
    model = GPT2(lm.model.config, weights, weight_dtype=lm.model.weight_dtype, exact=lm.model.exact)
    model.processes = lm.model.processes
    taught = LanguageModel(
        model, lm.tokenizer, name=name, defaults=lm.defaults, eos_token_ids=lm.eos_token_ids
    )
    taught.draft_source.draft = lm.draft_source.draft
    taught.draft_source.folder = lm.draft_source.folder
    options = replace(engine.options, max_running=_MAX_RUNNING)
    return Engine(taught, Metrics(), options, engine.template)
