"""The HTTP application: endpoints and errors."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import generate_latest
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from gpt2np import __version__
from gpt2np.chat.template import read_chat_template
from gpt2np.errors import (
    ContextLengthError,
    GPT2NPError,
    InvalidArgumentError,
    ModelNotFoundError,
    errors_about,
    printable,
    short_repr,
)
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.runtime.arguments import check_ids
from gpt2np.server.engine import (
    PREPARATION,
    TOKENIZATION,
    Engine,
    Metrics,
    RequestTimeoutError,
    UnavailableError,
    answer,
    run_on,
)
from gpt2np.server.guard import Guard
from gpt2np.server.inspect import add_inspection
from gpt2np.server.options import ServerOptions
from gpt2np.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    OpenRequest,
    StopTeachingRequest,
    TeachRequest,
    TokenizeRequest,
)
from gpt2np.server.replies import (
    DONE,
    AnyReply,
    ChatReply,
    CompletionReply,
    Json,
    error_body,
    event,
    events,
    respond,
    start_request,
)
from gpt2np.server.teach import Taught, teach_page
from gpt2np.view import MEDIA_TYPES, web_files

_INVALID = "invalid_request_error"
_ERRORS: list[tuple[type[Exception], int, str, str | None]] = [
    (ModelNotFoundError, 404, _INVALID, "model_not_found"),
    (ContextLengthError, 400, _INVALID, "context_length_exceeded"),
    (InvalidArgumentError, 400, _INVALID, None),
    (UnavailableError, 503, "service_unavailable_error", None),
    (RequestTimeoutError, 504, "timeout_error", None),
    (GPT2NPError, 500, "server_error", None),
]
"""The status, type and code of each error, of subclasses first."""

_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data:; "
        "style-src-elem 'self'; style-src-attr 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Server:
    """The models of a server, with their engines."""

    def __init__(self, models: Sequence[LanguageModel], options: ServerOptions) -> None:
        self.options, self.metrics, self.started = options, Metrics(), int(time.time())
        self.engines: dict[str, Engine] = {}
        self.taught = Taught()
        self.is_ending: Callable[[], bool] = lambda: False  # then endless streams end, too
        for lm in models:
            if lm.name in self.engines:
                raise InvalidArgumentError(f"model {lm.name} is given twice", param="model")
            roles = lm.tokenizer.vocabulary.special_tokens_map
            template = read_chat_template(lm.folder, roles) if lm.folder else None
            self.engines[lm.name] = Engine(lm, self.metrics, options, template)

    def engine(self, model: str | None) -> Engine:
        """Return the engine of a model; None means the first model."""
        if model is None:
            return next(iter(self.engines.values()))
        if model in self.taught.engines:
            return self.taught.engines[model]
        if model not in self.engines:
            names = ", ".join(self.engines)
            message = f"there is no model {short_repr(model)}; there are: {names}"
            raise ModelNotFoundError(message, param="model")
        return self.engines[model]


def create_app(server: Server) -> FastAPI:
    """Create the application of a server."""
    app = FastAPI(
        title="gpt2np",
        version=__version__,
        redirect_slashes=False,  # a redirect would repeat the Host header
    )
    _add_error_handlers(app)
    _add_generation(app, server)
    _add_tokenizer(app, server)
    _add_status(app, server)
    add_inspection(app, server.engine)
    _add_playground(app)
    options = server.options
    app.add_middleware(Guard, api_key=options.api_key, allowed_hosts=options.allowed_hosts)
    if options.cors_origins:  # before the key: a preflight request has none
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # the openai package sends x-stainless-os and others
            expose_headers=["X-Request-Id", "X-Ignored-Fields"],
        )
    return app


def _add_generation(app: FastAPI, server: Server) -> None:
    @app.post("/v1/completions")
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue one or several prompts."""
        engine = server.engine(body.model)
        reply = CompletionReply(body, engine.lm, request.scope["request_id"])
        return await _answer(request, engine, reply, body.prompts())

    @app.post("/v1/chat/completions")
    async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
        """Answer the messages of a conversation. The model needs a chat template."""
        engine = server.engine(body.model)
        reply = ChatReply(body, engine.lm, request.scope["request_id"])
        render = partial(_chat_prompt, engine, body)
        return await _answer(request, engine, reply, [render])

    @app.post("/api/teach")
    async def teach(request: Request, body: TeachRequest) -> Response:
        """Teach a copy of a model a page of text; the copy lives as long as the connection."""
        engine = server.engine(body.model)
        stream = teach_page(server.taught, engine, body.text, server.is_ending)

        async def begin() -> Response:
            return _stream_response(await anext(stream), stream)

        return await answer(request, begin(), engine.options.timeout)

    @app.post("/api/teach/stop")
    async def stop_teaching(body: StopTeachingRequest) -> Json:
        """End the training of a model after the step that runs; the model keeps what it knows."""
        server.taught.to_stop = body.model
        return {}


async def _answer(
    request: Request,
    engine: Engine,
    reply: AnyReply,
    prompts: Sequence[Prompt | Callable[[], Prompt]],
) -> Response:
    """Start and run a request; return the response, or a stream that has begun."""
    body = reply.request

    async def begin() -> Response:
        running = await start_request(engine, body, prompts)
        if not body.stream:
            return Response(await respond(running, reply), media_type="application/json")
        stream = events(running, reply)
        first = await anext(stream)  # an error here is a status
        return _stream_response(first, stream, body.named)

    try:
        response = await answer(request, begin(), engine.options.timeout)
    except (InvalidArgumentError, ContextLengthError) as error:
        raise body.named(error) from error
    return _naming_ignored(body, response)


def _naming_ignored(body: OpenRequest, response: Response) -> Response:
    if body.unknown_fields:
        response.headers["X-Ignored-Fields"] = ", ".join(body.unknown_fields)
    return response


def _stream_response(
    first: bytes,
    stream: AsyncGenerator[bytes, None],
    named: Callable[[Exception], Exception] = lambda error: error,
) -> Response:
    """Return the response of a stream whose first events have come; `named` adapts an error."""

    async def body() -> AsyncIterator[bytes]:
        yield first
        try:
            async for data in stream:
                yield data
        except Exception as failure:
            yield event(_error(named(failure))[1]) + DONE

    async def close() -> None:
        await stream.aclose()

    return StreamingResponse(
        body(),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        background=BackgroundTask(close),  # also runs if the client disconnects
    )


def _chat_prompt(engine: Engine, body: ChatCompletionRequest | TokenizeRequest) -> str:
    """Render the messages, none of which may contain a special token."""
    lm, template = engine.lm, engine.template
    if template is None:
        raise InvalidArgumentError(
            f"{lm.name} has no chat template: it continues texts; use /v1/completions",
            param="model",
        )
    messages = [{"role": m.role, "content": m.text()} for m in body.messages or ()]
    add, special = body.add_generation_prompt is not False, lm.tokenizer.special_tokens
    with errors_about("messages"):
        return template.render(messages, add_generation_prompt=add, special_tokens=special)


def _tokens(engine: Engine, body: TokenizeRequest) -> str:
    """Return the answer of /tokenize as JSON, whose encoder would hold the interpreter's lock."""
    text = body.prompt or "" if body.messages is None else _chat_prompt(engine, body)
    ids = engine.lm.tokenizer.encode(text, allowed_special="all")
    head = {"count": len(ids), "max_model_len": engine.lm.model.config.n_positions}
    return f'{json.dumps(head)[:-1]}, "tokens": [{", ".join([str(i) for i in ids])}]}}'


def _add_tokenizer(app: FastAPI, server: Server) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        """Encode a text; special tokens such as <|endoftext|> become their ids."""
        answer = await run_on(TOKENIZATION, _tokens, server.engine(body.model), body)
        return _naming_ignored(body, Response(answer, media_type="application/json"))

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Json:
        """Decode token ids."""
        tokenizer = server.engine(body.model).lm.tokenizer
        check_ids("tokens", body.tokens, tokenizer.vocab_size)
        return {"prompt": await run_on(PREPARATION, tokenizer.decode, body.tokens)}

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Json:
        """Describe the first model's tokenizer, for lm-evaluation-harness."""
        engine = server.engine(None)
        tokenizer, template = engine.lm.tokenizer, engine.template
        eos_tokens = [t for t, i in tokenizer.special_tokens.items() if i == tokenizer.eos_token_id]
        return {
            **tokenizer.vocabulary.special_tokens_map,
            "eos_token": next(iter(eos_tokens), None),
            "chat_template": template.source if template else None,
        }


def _add_status(app: FastAPI, server: Server) -> None:
    @app.get("/v1/models")
    async def list_models() -> Json:
        """List the models."""
        return {"object": "list", "data": [_model(server, name) for name in server.engines]}

    @app.get("/v1/models/{name:path}")  # OWNER/NAME or a path: takes all below
    async def retrieve_model(name: str) -> Json:
        """Describe one model."""
        return _model(server, name)

    @app.get("/health")
    async def health() -> Json:
        """Return status 200, or 503 if requests could not run."""
        for engine in server.engines.values():
            engine.check_health()
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the metrics in Prometheus's text format."""
        return PlainTextResponse(generate_latest(server.metrics.registry))


def _add_playground(app: FastAPI) -> None:
    """Add the page at /, which generates and inspects texts, and the files that it loads."""
    contents = web_files()

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return await playground_file("index.html")

    @app.get("/playground/{name}", include_in_schema=False)
    async def playground_file(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404, f"there is no /playground/{name[:60]}")
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(contents[name], media_type=media_type, headers=_PAGE_HEADERS)


def _model(server: Server, name: str) -> Json:
    config = server.engine(name).lm.model.config
    return {
        "id": name,
        "object": "model",
        "created": server.started,
        "owned_by": "gpt2np",
        "max_model_len": config.n_positions,
    }


def _add_error_handlers(app: FastAPI) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        status, body = _error(error)
        headers = {"Retry-After": "1"} if status == 503 else getattr(error, "headers", None)
        return JSONResponse(body, status, headers)

    for kind in (RequestValidationError, HTTPException, GPT2NPError, Exception):
        app.add_exception_handler(kind, handle)


def _error(error: Exception) -> tuple[int, Json]:
    """Return the status and the body of the response to a request that has failed."""
    if isinstance(error, RequestValidationError):
        # Of a union's errors, the deepest, or a list's, belongs to the type that the client meant.
        found = max(error.errors(), key=lambda e: (len(e["loc"]), e["type"] == "too_long"))
        if isinstance(cause := found.get("ctx", {}).get("error"), GPT2NPError):
            return _error(cause)
        name = ".".join(str(part) for part in found["loc"][1:] if not _is_type(part))
        what = printable(found["msg"].removeprefix("Value error, "))
        name = "" if found["type"] == "json_invalid" else printable(name)[:100]
        return 400, error_body(f"{name or 'the body'}: {what}", _INVALID, param=name or None)
    if isinstance(error, HTTPException) and error.detail == "Not Found":  # Starlette's own
        return 404, error_body("there is no such endpoint; /docs lists all endpoints", _INVALID)
    if isinstance(error, HTTPException):
        return error.status_code, error_body(str(error.detail), _INVALID)
    for kind, status, type_name, code in _ERRORS:
        if isinstance(error, kind):
            return status, error_body(str(error), type_name, code, getattr(error, "param", None))
    return 500, error_body(f"internal error: {type(error).__name__}", "server_error")


def _is_type(part: int | str) -> bool:
    """Return whether a part of an error's place is pydantic's name of a type, not a field."""
    is_word = isinstance(part, int) or re.fullmatch(r"[A-Za-z0-9_.-]+", part)
    return not is_word or part in ("str", "int", "float", "bool", "constrained-str")
