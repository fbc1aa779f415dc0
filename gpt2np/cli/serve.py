"""Serve models over HTTP: an OpenAI-compatible API and a playground.

Clients of OpenAI's API use http://HOST:PORT/v1 as their base URL; the page
/docs describes the endpoints. The playground at http://HOST:PORT/ is a page for
writing with a model and for seeing the model's choices and internals.

Ctrl-C or SIGTERM lets the running requests end, then stops the server; Ctrl-C
again stops the server at once.
"""

import argparse
import os

from gpt2np.cli.declared_options import add_groups, add_option, given_options
from gpt2np.cli.model_options import add_performance_arguments, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.errors import GPT2NPError, InvalidArgumentError, install_hint
from gpt2np.options import options_of
from gpt2np.runtime.options import MODEL_HELP, ModelOptions
from gpt2np.server.options import ServerOptions

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    host = "Address to serve at (default: 127.0.0.1)"
    add("--host", default="127.0.0.1", metavar="HOST", help=host)
    port = "Port to serve at; 0 selects a free port (default: 8000)"
    add("--port", type=int, default=8000, metavar="PORT", help=port)
    default = options_of(ModelOptions)["model"].default_text
    text = f"{MODEL_HELP} (may be given several times; default: {default})"
    add_option(parser, ModelOptions, "model", action="append", help=text)
    only_one = "Tokenizer to use instead of the model's own; allowed only with a single --model"
    add_option(parser, ModelOptions, "tokenizer", help=only_one)
    add_performance_arguments(parser, "dtype", "exact", "weights", "processes", "draft")
    groups = add_groups(parser, ServerOptions)
    no_key = "Serve without an API key even if other machines can reach --host"
    groups["Access"].add_argument("--no-api-key", action="store_true", help=no_key)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code."""
    options = _server_options(args)
    if args.tokenizer and len(args.model or []) > 1:
        raise InvalidArgumentError("--tokenizer is for one model; give one --model")
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        hint = install_hint("server")
        raise GPT2NPError(f"gpt2np serve needs the package {error.name}; {hint}") from error
    from gpt2np.server.run import serve

    serve(
        lambda: [
            load_model(argparse.Namespace(**vars(args) | {"model": model}))
            for model in args.model or [None]
        ],
        options,
        lambda names, url: print_stderr(f"serving {', '.join(names)} at {url}"),
        host=args.host,
        port=args.port,
    )
    return 0


def _server_options(args: argparse.Namespace) -> ServerOptions:
    if args.api_key is not None and args.no_api_key:
        raise InvalidArgumentError("--api-key and --no-api-key contradict each other; give one")
    key = os.environ.get("GPT2NP_API_KEY") or None if args.api_key is None else args.api_key
    key = None if args.no_api_key else key
    if args.host not in _LOOPBACK and not (key or args.no_api_key):
        raise InvalidArgumentError(
            f"--host {args.host} can serve other machines; set --api-key, or --no-api-key"
        )
    return ServerOptions(**given_options(args, ServerOptions) | {"api_key": key})
