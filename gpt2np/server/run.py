"""Running the server: address, loading of the models, signals, shutdown."""

from __future__ import annotations

import asyncio
import copy
import os
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from gpt2np.errors import InvalidArgumentError, error_reason
from gpt2np.language_model import LanguageModel
from gpt2np.server.app import Server, create_app
from gpt2np.server.connections import Connection, limit_connections
from gpt2np.server.engine import QueueFullError

_POLL = 0.05  # seconds
_GRACE = 5.0  # seconds to send the error events of requests that were ended
_ACCEPTED = 128  # connections that asyncio accepts at a time
_BACKLOG = 2048  # connections that wait to be accepted; any more try again after a second
_SWITCH_INTERVAL = 0.0005  # seconds
_MAX_UNREAD = 60.0  # seconds until a client that reads nothing is disconnected


def serve(
    server: Server,
    load: Callable[[], Sequence[LanguageModel]],
    on_ready: Callable[[str], object],
    *,
    host: str,
    port: int,
) -> None:
    """Serve until SIGINT or SIGTERM. `load` returns the models, while /health already answers.

    `on_ready` receives the server's URL once the models are loaded. After the first signal, running
    requests have the option `shutdown_timeout` to end.

    Raises:
        InvalidArgumentError: the address can't be used.
        Exception: an error of `load`.
    """
    listener = _listen(host, port, min(_MAX_UNREAD, server.options.timeout))
    limit_connections()
    # By default, a thread that computes in Python keeps the others waiting for 5 ms at a time, and
    # a decode step waits after each product of matrices.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with listener:
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{listener.getsockname()[1]}"
        runner = _UvicornServer(_config(server), server)
        asyncio.run(_serve(runner, server, load, listener, lambda: on_ready(url)))


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
        backlog=_ACCEPTED,
        # uvicorn trusts X-Forwarded-For of 127.0.0.1, unless this variable names the proxies.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        timeout_graceful_shutdown=1,  # `_UvicornServer` has waited for the requests
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


async def _serve(
    runner: _UvicornServer,
    server: Server,
    load: Callable[[], Sequence[LanguageModel]],
    listener: socket.socket,
    on_ready: Callable[[], object],
) -> None:
    serving = asyncio.create_task(runner.serve(sockets=[listener]))
    loading = asyncio.create_task(asyncio.to_thread(load))
    await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        try:
            server.add_models(loading.result())
            listener.listen(_BACKLOG)  # asyncio has called it with _ACCEPTED
            on_ready()
        except BaseException:
            runner.should_exit = True
            await serving
            raise
    await serving


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that gives running requests a time to end, then ends them with an error."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown. A second signal ends all requests, and a third one ends the server.

        Unlike uvicorn's method, this one does not raise the signal again at the end.
        """
        if not self._server.engines:
            os._exit(0)  # nothing can interrupt a download in another thread
        error, loop = QueueFullError("the server is shutting down"), asyncio.get_running_loop()
        if self._server.is_ending:
            for engine in self._server.engines.values():
                engine.cancel_all(error)
            self.force_exit, self.should_exit = self.should_exit, True
            return
        self._server.is_ending = True
        for engine in self._server.engines.values():
            loop.call_later(self._server.options.shutdown_timeout, engine.cancel_all, error)
        self._exit_when_idle(loop.time() + self._server.options.shutdown_timeout + _GRACE)

    def _exit_when_idle(self, deadline: float) -> None:
        """Exit once no request runs; until then, new requests and /health get status 503."""
        loop = asyncio.get_running_loop()
        if self.server_state.tasks and loop.time() < deadline:
            loop.call_later(_POLL, self._exit_when_idle, deadline)
        else:
            self.should_exit = True
