"""The HTTP application: endpoints, errors, loading of the models."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from gpt2np import __version__
from gpt2np.chat.template import ChatTemplate, check_special_tokens, read_chat_template
from gpt2np.errors import (
    ContextLengthError,
    GPT2NPError,
    InvalidArgumentError,
    ModelNotFoundError,
    short_repr,
)
from gpt2np.language_model import LanguageModel, Prompt
from gpt2np.runtime.arguments import check_ids
from gpt2np.server.completions import events, respond, start_request
from gpt2np.server.engine import Engine, QueueFullError, RequestTimeoutError
from gpt2np.server.inspect import add_inspection
from gpt2np.server.metrics import Metrics
from gpt2np.server.middleware import Guard
from gpt2np.server.options import ServerOptions
from gpt2np.server.playground import add_playground
from gpt2np.server.protocol import (
    JSON_NAMES,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    UnsupportedFieldError,
)
from gpt2np.server.replies import AnyReply, ChatReply, CompletionReply
from gpt2np.server.responses import (
    DONE,
    ChatCompletionResponse,
    CompletionResponse,
    ErrorResponse,
    Json,
    error_body,
    event,
)
from gpt2np.server.threads import (
    CHAT_TEMPLATES,
    body_schema,
    json_response,
    prepare,
    read_json,
    run_on,
    until_disconnected,
)

_INVALID = "invalid_request_error"


@dataclass
class Server:
    """The state of a server: its models, once loaded.

    Attributes:
        options: the options.
        metrics: the metrics of /metrics.
        engines: the engine of each model, by name; empty until the models are loaded.
        templates: the chat template of each model that has one, by name.
        is_ending: whether the server shuts down, and takes no new requests.
    """

    options: ServerOptions
    metrics: Metrics = field(default_factory=Metrics)
    engines: dict[str, Engine] = field(default_factory=dict)
    templates: dict[str, ChatTemplate] = field(default_factory=dict)
    is_ending: bool = False

    def add_models(self, models: Sequence[LanguageModel]) -> None:
        """Create the engines of models that have just been loaded, and compile their templates."""
        for lm in models:
            if lm.name in self.engines:
                raise InvalidArgumentError(f"model {lm.name} is given twice", param="model")
            roles = lm.tokenizer.vocabulary.special_tokens_map
            template = read_chat_template(lm.folder, roles) if lm.folder else None
            if template:
                self.templates[lm.name] = template
            self.engines[lm.name] = Engine(lm, self.metrics, self.options)

    def engine(self, model: str | None) -> Engine:
        """Return the engine of a model; None means the first model."""
        if self.is_ending or not self.engines:
            what = "is shutting down" if self.is_ending else "is loading the model"
            raise QueueFullError(f"the server {what}")
        if model is None:
            return next(iter(self.engines.values()))
        if model not in self.engines:
            names = ", ".join(self.engines)
            raise ModelNotFoundError(f"there is no model {short_repr(model)}; there are: {names}")
        return self.engines[model]


class _App(FastAPI):
    def openapi(self) -> Json:
        """Move definitions of `body_schema` to their place; remove FastAPI's error response."""
        schema = super().openapi()
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    schema["components"]["schemas"] |= content["schema"].pop("$defs", {})
        return schema


def create_app(server: Server) -> FastAPI:
    """Create the application of a server."""
    errors: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorResponse, "description": "The request is wrong"},
        "5XX": {"model": ErrorResponse, "description": "The server is busy, or has failed"},
    }
    app = _App(
        title="gpt2np",
        version=__version__,
        responses=errors,
        redirect_slashes=False,  # a redirect would repeat the Host header
    )
    _add_error_handlers(app)
    _add_generation(app, server)
    _add_tokenizer(app, server)
    _add_status(app, server)
    add_inspection(app, server.engine)
    add_playground(app)
    options = server.options
    app.add_middleware(Guard, api_key=options.api_key, allowed_hosts=options.allowed_hosts)
    if options.cors_origins:  # before the key: a preflight request has none
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


def _add_generation(app: FastAPI, server: Server) -> None:
    @app.post(
        "/v1/completions",
        responses=_success(CompletionResponse),
        openapi_extra=body_schema(CompletionRequest),
    )
    async def create_completion(request: Request) -> Response:
        """Continue one or several prompts."""
        body = await read_json(request, CompletionRequest)
        engine = server.engine(body.model)
        reply = CompletionReply(body, engine.lm, request.scope["request_id"])
        return await _answer(request, engine, reply, body.prompts())

    @app.post(
        "/v1/chat/completions",
        responses=_success(ChatCompletionResponse),
        openapi_extra=body_schema(ChatCompletionRequest),
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answer the messages of a conversation. The model needs a chat template."""
        body = await read_json(request, ChatCompletionRequest)
        engine = server.engine(body.model)
        reply = ChatReply(body, engine.lm, request.scope["request_id"])
        render = partial(_chat_prompt, server, engine.lm, body)
        return await _answer(request, engine, reply, [render])


def _success(model: type) -> dict[int | str, dict[str, Any]]:
    """Describe the response of an endpoint that can stream."""
    return {200: {"model": model, "content": {"text/event-stream": {}}}}


async def _answer(
    request: Request,
    engine: Engine,
    reply: AnyReply,
    prompts: Sequence[Prompt | Callable[[], Prompt]],
) -> Response:
    """Start and run a request; return the response, or a stream that has begun.

    The request ends early when the client disconnects. A header names unknown fields.
    """
    body = reply.request

    async def begin() -> Response:
        running = await start_request(engine, body, prompts)
        if engine.options.log_prompts:
            texts = [prompt.text for prompt in running.prompts]
            print(f"{reply.id}: {texts!r}", file=sys.stderr, flush=True)
        if not body.stream:
            return Response(await respond(running, reply), media_type="application/json")
        stream = events(running, reply)
        return _stream_response(await anext(stream), stream)  # an error here is a status

    response = await until_disconnected(request, begin())
    if body.unknown_fields:
        response.headers["X-Ignored-Fields"] = ", ".join(body.unknown_fields)
    return response


def _stream_response(first: bytes, stream: AsyncGenerator[bytes, None]) -> Response:
    """Return the response of a stream whose first events have come."""

    async def body() -> AsyncIterator[bytes]:
        yield first
        try:
            async for data in stream:
                yield data
        except Exception as failure:
            yield event(_error(failure)[1]) + DONE
        finally:
            await stream.aclose()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


def _chat_prompt(
    server: Server, lm: LanguageModel, body: ChatCompletionRequest | TokenizeRequest
) -> list[int]:
    """Render and encode the messages, none of which may contain a special token."""
    template = server.templates.get(lm.name)
    if template is None:
        raise InvalidArgumentError(
            f"{lm.name} has no chat template: it continues texts; use /v1/completions"
        )
    messages = [{"role": m.role, "content": m.text()} for m in body.messages or ()]
    check_special_tokens(messages, lm.tokenizer.special_tokens)
    text = template.render(messages, add_generation_prompt=body.add_generation_prompt is not False)
    return lm.tokenizer.encode(text, allowed_special="all")


def _add_tokenizer(app: FastAPI, server: Server) -> None:
    @app.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """Encode a text; special tokens such as <|endoftext|> become their ids."""
        body = await read_json(request, TokenizeRequest)
        lm = server.engine(body.model).lm
        text = body.prompt if body.prompt is not None else body.content
        if body.messages is not None:
            ids = await run_on(CHAT_TEMPLATES, _chat_prompt, server, lm, body)
        elif text is not None:
            ids = await prepare(lm.tokenizer.encode, text, allowed_special="all")
        else:
            raise InvalidArgumentError("prompt is missing")
        answer = {"tokens": ids, "count": len(ids), "max_model_len": lm.model.config.n_positions}
        if body.return_token_strs:
            answer["token_strs"] = await prepare(lm.tokenizer.token_texts, ids)
        return await json_response(answer)

    @app.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """Decode token ids."""
        body = await read_json(request, DetokenizeRequest)
        tokenizer = server.engine(body.model).lm.tokenizer
        check_ids("tokens", body.tokens, tokenizer.vocab_size)
        text = await prepare(tokenizer.decode, body.tokens)
        return await json_response({"prompt": text, "content": text})

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Json:
        """Describe the first model's tokenizer, for lm-evaluation-harness."""
        lm = server.engine(None).lm
        tokenizer, template = lm.tokenizer, server.templates.get(lm.name)
        eos_tokens = [t for t, i in tokenizer.special_tokens.items() if i == tokenizer.eos_token_id]
        return {
            **tokenizer.vocabulary.special_tokens_map,
            "eos_token": next(iter(eos_tokens), None),
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": lm.model.config.n_positions,
            "chat_template": template.source if template else None,
        }


def _add_status(app: FastAPI, server: Server) -> None:
    @app.get("/v1/models")
    async def list_models() -> Json:
        """List the models."""
        server.engine(None)
        return {"object": "list", "data": [_model(engine) for engine in server.engines.values()]}

    @app.get("/v1/models/{name:path}")  # a name may be a path, or OWNER/NAME
    async def describe_model(name: str) -> Json:
        """Describe one model."""
        return _model(server.engine(name))

    @app.get("/health")
    async def health() -> Json:
        """Return status 200 once the models are loaded, 503 before and during shutdown."""
        server.engine(None)
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> Json:
        """Return the version of gpt2np."""
        return {"version": __version__}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the metrics in Prometheus's text format."""
        return PlainTextResponse(server.metrics.text())


def _model(engine: Engine) -> Json:
    return {
        "id": engine.lm.name,
        "object": "model",
        "created": 0,
        "owned_by": "gpt2np",
        "max_model_len": engine.lm.model.config.n_positions,
    }


def _add_error_handlers(app: FastAPI) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        status, body = _error(error)
        headers = {"Retry-After": "1"} if status == 503 else getattr(error, "headers", None)
        return JSONResponse(body, status, headers)

    for kind in (ValidationError, HTTPException, GPT2NPError, Exception):
        app.add_exception_handler(kind, handle)


def _is_name(part: int | str) -> bool:
    """Return whether a part of an error's place is a field or an index, not the type of a union."""
    is_word = re.fullmatch("[a-z0-9_]+", str(part))
    return bool(is_word) and part not in ("str", "int", "float", "bool")


def _position(place: Sequence[int | str]) -> tuple[list[int], int]:
    """Return a sort key for errors: places farther into lists, or more deeply nested, come last."""
    indices = [part for part in place if isinstance(part, int)]
    return indices, sum(map(_is_name, place))


def _error(error: Exception) -> tuple[int, ErrorResponse]:
    """Return the status and the body of the response to a request that has failed."""
    if isinstance(error, ValidationError):
        # Of a union's errors, the last in a list belongs to the type that the client meant.
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        found = max(errors, key=lambda found: _position(found["loc"]))
        parts = [str(part) for part in found["loc"] if _is_name(part)]
        if found["type"] == "extra_forbidden" and not _is_name(found["loc"][-1]):
            parts.append(str(found["loc"][-1]))  # a misspelled field
        name, what = ".".join(parts), found["msg"].removeprefix("Value error, ")
        return 400, error_body(f"{name or 'the body'}: {what}", _INVALID, param=name or None)
    if isinstance(error, HTTPException) and error.detail == "Not Found":  # Starlette's own
        return 404, error_body("there is no such endpoint; /docs lists all endpoints", _INVALID)
    if isinstance(error, HTTPException):
        return error.status_code, error_body(str(error.detail), _INVALID)
    if isinstance(error, ModelNotFoundError):
        return 404, error_body(str(error), _INVALID, "model_not_found", "model")
    if isinstance(error, QueueFullError):
        return 503, error_body(str(error), "service_unavailable_error")
    if isinstance(error, RequestTimeoutError):
        return 504, error_body(str(error), "timeout_error")
    if isinstance(error, ContextLengthError):
        text = str(error).replace("set window,", "set truncate_prompt_tokens,")
        return 400, error_body(text, _INVALID, "context_length_exceeded", "prompt")
    if isinstance(error, InvalidArgumentError):
        names = {} if isinstance(error, UnsupportedFieldError) else JSON_NAMES
        param = names.get(error.param or "", error.param)
        return 400, error_body(error.renamed(names), _INVALID, param=param)
    if isinstance(error, GPT2NPError):
        return 500, error_body(str(error), "server_error")
    return 500, error_body(f"internal error: {type(error).__name__}", "server_error")
