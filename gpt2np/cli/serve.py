"""Serve models over HTTP, with OpenAI's protocol and a page to try them.

Clients of OpenAI's API use http://HOST:PORT/v1 as their base URL. The endpoints
are /v1/completions, /v1/chat/completions (for models with a chat template),
/v1/models, /tokenize, /detokenize, /health, /version and /metrics; /docs
describes them. The result of a request does not depend on other requests.

The playground at http://HOST:PORT/ shows a model at work in the browser: write,
see the choices, look inside.

Ctrl-C or SIGTERM ends the server after the running requests; a second signal
ends it at once.
"""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt2np.cli.generation_options import add_draft
from gpt2np.cli.model_options import add_model_arguments, add_processes_argument, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.errors import GPT2NPError, InvalidArgumentError, install_hint
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="HOST", help="Address (default: 127.0.0.1)")
    add("--port", type=int, default=8000, metavar="PORT", help="Port (default: 8000; 0: any)")
    performance = add_model_arguments(parser, multiple=True)
    add_processes_argument(performance.add_argument)
    add_draft(performance.add_argument)
    add = parser.add_argument_group("Queue").add_argument
    running = "Most sequences in a batch (default: 16)"
    add("--max-running", type=int, default=16, metavar="N", help=running)
    queued = "Most sequences that wait; further requests get status 503 (default: 1024)"
    add("--max-queued", type=int, default=1024, metavar="N", help=queued)
    cache = "Most bytes of a batch's KV caches (default: $GPT2NP_MAX_CACHE_BYTES, or 1 GiB)"
    add("--cache-bytes", type=int, metavar="BYTES", help=cache)
    timeout = "End a request after this time (default: 600)"
    add("--timeout", type=float, default=600.0, metavar="SECONDS", help=timeout)
    shutdown = "Time for running requests to end at shutdown (default: 30)"
    add("--shutdown-timeout", type=float, default=30.0, metavar="SECONDS", help=shutdown)
    add = parser.add_argument_group("Access").add_argument
    key = "Key that requests need, as Authorization: Bearer KEY (default: $GPT2NP_API_KEY, or none)"
    add("--api-key", default=os.environ.get("GPT2NP_API_KEY"), metavar="KEY", help=key)
    no_key = "Serve other machines without a key"
    add("--no-api-key", action="store_true", help=no_key)
    host = "Name by which clients may address a server without a key, besides localhost; repeatable"
    add("--allowed-host", action="append", default=[], metavar="NAME", help=host)
    cors = "Allow web pages of this origin, or '*' for all; repeatable"
    add("--cors-origin", action="append", default=[], metavar="ORIGIN", help=cors)
    add("--access-log", action="store_true", help="Log each request, without its body, on stderr")
    add("--log-prompts", action="store_true", help="Log the prompts of each request on stderr")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code."""
    set_threads(args.threads)  # must come before NumPy is imported
    _check(args)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        hint = install_hint("server")
        raise GPT2NPError(f"gpt2np serve needs the package {error.name}; {hint}") from error
    from gpt2np.server.app import Server, ServerOptions
    from gpt2np.server.run import serve

    options = ServerOptions(
        max_running=args.max_running,
        max_queued=args.max_queued,
        cache_bytes=args.cache_bytes,
        timeout=args.timeout,
        api_key=None if args.no_api_key else args.api_key or None,
        allowed_hosts=args.allowed_host,
        cors_origins=args.cors_origin,
        log_prompts=args.log_prompts,
    )
    server = Server(options)
    serve(
        server,
        lambda: _load_models(args),
        lambda url: print_stderr(f"serving {', '.join(server.engines)} at {url}"),
        host=args.host,
        port=args.port,
        shutdown_timeout=args.shutdown_timeout,
        access_log=args.access_log,
    )
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("max_running", "max_queued", "cache_bytes", "timeout", "shutdown_timeout"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise InvalidArgumentError(f"--{name.replace('_', '-')} must be above 0")
    if args.host not in _LOOPBACK and not (args.api_key or args.no_api_key):
        raise InvalidArgumentError(
            f"--host {args.host} can serve other machines; set --api-key, or --no-api-key"
        )


def _load_models(args: argparse.Namespace) -> "Sequence[LanguageModel]":
    models = []
    for model in args.model or [None]:
        lm, messages = load_model(argparse.Namespace(**{**vars(args), "model": model}))
        for message in messages:
            print_stderr(message)
        models.append(lm)
    return models
