"""Connections: a time limit for the headers of a request, and a limit on their number."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt2np.limits import limits

_OTHER_FILES = 512  # models, connections that have just been accepted


class Connection(H11Protocol):
    """A connection that closes if the headers of its next request take too long.

    Beyond `max_number`, which `limit_connections` sets, a new connection closes the oldest one
    without a request.
    """

    max_number: ClassVar[int] = limits().max_connections
    _opened: float
    _deadline: float | None = None  # for the headers of the next request, once they have begun

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._limit_headers()
        if len(self.connections) > self.max_number:
            idle = [c for c in self.connections if isinstance(c, Connection) and c._is_idle]
            min(idle, key=lambda connection: connection._opened).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_headers()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _limit_headers(self) -> None:
        """Set uvicorn's timer, which uvicorn itself sets only after a response."""
        if not self._is_idle or self.transport.is_closing():
            self._deadline = None
            return
        if self._deadline is None:
            self._deadline = self.loop.time() + limits().max_header_seconds
        self._unset_keepalive_if_required()
        close = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_at(self._deadline, close)


def limit_connections() -> None:
    """Allow as many open files as `Limits.max_connections` needs, or else fewer connections."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        n_files = max(soft, limits().max_connections + _OTHER_FILES)
        if hard != resource.RLIM_INFINITY:
            n_files = min(n_files, hard)
        Connection.max_number = min(
            limits().max_connections, max(n_files - _OTHER_FILES, n_files // 4)
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, hard))
