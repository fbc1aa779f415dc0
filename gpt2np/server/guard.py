"""What strangers may send: checks before a body is read, and limits on connections."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import ClassVar
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt2np.errors import short_repr
from gpt2np.limits import limits
from gpt2np.server.replies import error_body

_LINGER = 5.0  # seconds in which the body of a refused request is discarded, as in nginx
MAX_CONNECTIONS = 2048
_OTHER_FILES = 512  # models, connections that have just been accepted


class Guard:
    """ASGI middleware that refuses requests without reading them, or while it reads them."""

    def __init__(self, app: ASGIApp, api_key: str | None, allowed_hosts: Sequence[str]) -> None:
        """Refuse requests without `api_key`; /health and the playground's files need no key.

        Without a key, refuse requests whose Host is neither an IP address nor localhost, nor one of
        `allowed_hosts`. A web page elsewhere can point its own name at this machine (DNS
        rebinding), but its requests still send that name as Host.
        """
        self._app = app
        self._api_key = api_key
        self._allowed_hosts = {"localhost", *(host.lower() for host in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an error, or pass the request on."""
        own_id = Headers(scope=scope).get("x-request-id", "")
        request_id = own_id if re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", own_id) else uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        scope = {**scope, "request_id": request_id}
        with suppress(asyncio.CancelledError):  # uvicorn ends; it would write a traceback
            if refusal := self._refuse(scope["method"], scope["path"], Headers(scope=scope)):
                await _refuse_and_close(refusal, receive, send_with_id)
            else:
                await self._app(scope, _limited(receive), send_with_id)

    def _refuse(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        """Return the response to a request that is refused unread, if it is."""
        if self._api_key is None and not self._is_allowed(host := headers.get("host", "")):
            hint = "add it to the option allowed_hosts of the server, or set an API key"
            message = f"the server is not known as {short_repr(host)}; {hint}"
            return _error(403, message)
        is_open = path in ("/", "/health") or path.startswith("/playground/")  # files of the page
        if not is_open and not self._has_key(headers):
            message = "missing or wrong API key; send Authorization: Bearer KEY"
            return _error(401, message, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":  # a page from elsewhere can't send this
            return _error(415, "send the body as JSON, with Content-Type: application/json")
        length = headers.get("content-length", "0")
        if not (length.isdecimal() and len(length) < 20 and int(length) <= limits().max_body_bytes):
            return _error(413, _too_large())
        return None

    def _is_allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._allowed_hosts or bool(ip_address(name))
        except ValueError:
            return False

    def _has_key(self, headers: Headers) -> bool:
        if self._api_key is None:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        is_same = hmac.compare_digest(key.encode("latin-1"), self._api_key.encode())
        return is_same and scheme.lower() == "bearer"


def _limited(receive: Receive) -> Receive:
    """Return `receive` with a limit on the size of the body."""
    n_bytes = 0

    async def limited_receive() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > limits().max_body_bytes:  # a body in chunks has no content-length
            raise HTTPException(413, _too_large())
        return message

    return limited_receive


async def _refuse_and_close(refusal: JSONResponse, receive: Receive, send: Send) -> None:
    """Send a response at once; close the connection once the client has read it.

    If the connection was closed while the client still sends the body, the client might not read
    the response. So the body is discarded before the end of the response, for a limited time.
    """
    refusal.headers["Connection"] = "close"
    head = {"status": refusal.status_code, "headers": refusal.raw_headers}
    await send({"type": "http.response.start", **head})
    await send({"type": "http.response.body", "body": refusal.body, "more_body": True})
    deadline = time.monotonic() + _LINGER
    with suppress(asyncio.TimeoutError):
        while (await asyncio.wait_for(receive(), deadline - time.monotonic())).get("more_body"):
            pass
    await send({"type": "http.response.body"})


def _error(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(error_body(message, "invalid_request_error", code), status, headers)


def _too_large() -> str:
    return f"the body is larger than {limits().max_body_bytes:,} bytes"


class Connection(H11Protocol):
    """A connection that makes the server close another one if there are too many.

    Beyond `max_number`, which `limit_connections` sets, a new connection closes the oldest one
    that waits for a request or for the rest of a request.
    """

    max_number: ClassVar[int] = MAX_CONNECTIONS
    _opened: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._opened = self.loop.time()
        still_open = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and not connection.transport.is_closing()
        ]
        if len(still_open) > self.max_number:
            waiting = [connection for connection in still_open if connection._is_waiting]
            min(waiting, key=lambda connection: connection._opened).transport.abort()

    @property
    def _is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body


def limit_connections() -> None:
    """Allow as many open files as `MAX_CONNECTIONS` needs, or else fewer connections."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        n_files = max(soft, MAX_CONNECTIONS + _OTHER_FILES)
        if hard != resource.RLIM_INFINITY:
            n_files = min(n_files, hard)
        Connection.max_number = min(MAX_CONNECTIONS, max(n_files - _OTHER_FILES, n_files // 4))
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, hard))
