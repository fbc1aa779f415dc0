"""Running the server: address, loading of the models, signals, shutdown."""

from __future__ import annotations

import copy
import gc
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from gpt2np.errors import InvalidArgumentError, error_reason
from gpt2np.language_model import LanguageModel
from gpt2np.server.app import Server, create_app
from gpt2np.server.guard import Connection, limit_connections
from gpt2np.server.options import ServerOptions

_BACKLOG = 128  # connections that wait to be accepted; any more try again after a second
_SWITCH_INTERVAL = 0.0005  # seconds
_MAX_UNREAD = 60.0  # seconds until a client that reads nothing is disconnected


def serve(
    load: Callable[[], Sequence[LanguageModel]],
    options: ServerOptions,
    on_ready: Callable[[Sequence[str], str], object],
    *,
    host: str,
    port: int,
) -> None:
    """Load the models and serve them until SIGINT or SIGTERM.

    `on_ready` receives the models' names and the server's URL. SIGINT again ends the server at
    once.
    """
    with _listen(host, port, min(_MAX_UNREAD, options.timeout)) as listener:
        server = Server(load(), options)
        limit_connections()
        gc.freeze()  # or each full collection stops all threads while it reads the vocabularies
        # By default, a thread that computes in Python keeps the others waiting for 5 ms at a time,
        # and a decode step waits after each product of matrices.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        running = uvicorn.Server(_config(server))
        for sig in (signal.SIGINT, signal.SIGTERM):  # also before uvicorn has begun to listen
            signal.signal(sig, running.handle_exit)
        name = f"[{host}]" if ":" in host else host
        on_ready(list(server.engines), f"http://{name}:{listener.getsockname()[1]}")
        server.is_ending = lambda: running.should_exit
        running.run(sockets=[listener])


def _config(server: Server) -> uvicorn.Config:
    """Return uvicorn's settings for a server."""
    logging = copy.deepcopy(LOGGING_CONFIG)
    logging["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return uvicorn.Config(
        create_app(server),
        log_config=logging,
        log_level="info" if server.options.access_log else "warning",
        access_log=server.options.access_log,
        server_header=False,
        http=Connection,
        ws="none",
        lifespan="off",
        # uvicorn accepts up to `backlog` connections before `Connection` can close old ones.
        backlog=min(_BACKLOG, max(1, Connection.max_number // 2)),
        # uvicorn trusts X-Forwarded-For of 127.0.0.1, unless this variable names the proxies.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        timeout_graceful_shutdown=math.ceil(server.options.shutdown_timeout),
    )


def _listen(host: str, port: int, seconds: float) -> socket.socket:
    """Return a socket whose connections end if the client reads nothing for some seconds."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = error_reason(error)
        raise InvalidArgumentError(f"cannot listen at {host}, port {port}: {reason}") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit the option
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
    return listener
