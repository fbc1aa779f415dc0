"""Checks of every request before its body is read: host, API key, type, size, time."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt2np.errors import short_repr
from gpt2np.limits import limits
from gpt2np.server.replies import error_body


class Guard:
    """ASGI middleware that refuses requests without reading them, or while it reads them."""

    def __init__(self, app: ASGIApp, api_key: str | None, allowed_hosts: Sequence[str]) -> None:
        """Refuse requests without `api_key`; /health and the playground's files need no key.

        Without a key, refuse requests whose Host is neither an IP address nor localhost, nor one of
        `allowed_hosts`. A page from elsewhere could let its name point to this machine (DNS
        rebinding), but not change the name that its requests send.
        """
        self._app = app
        self._api_key = api_key
        self._allowed_hosts = {"localhost", *(host.lower() for host in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an error, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        if refusal := self._refuse(scope["method"], scope["path"], Headers(scope=scope)):
            await _discard_body(receive)  # else the client may not read the answer
            await refusal(scope, receive, send_with_id)
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # uvicorn omits the body
        scope = {**scope, "method": method, "request_id": request_id}
        n_bytes, is_read = 0, False
        deadline = time.monotonic() + limits().max_body_seconds

        async def limited_receive() -> Message:
            nonlocal n_bytes, is_read
            if is_read:
                return await receive()  # waits for the end of the connection
            try:
                message = await asyncio.wait_for(receive(), deadline - time.monotonic())
            except asyncio.TimeoutError as error:
                raise HTTPException(408, "the body took too long") from error
            is_read = not message.get("more_body", False)
            n_bytes += len(message.get("body", b""))
            if n_bytes > limits().max_body_bytes:  # a body in chunks has no content-length
                raise HTTPException(413, _too_large())
            return message

        with suppress(asyncio.CancelledError):  # uvicorn ends; it would write a traceback
            await self._app(scope, limited_receive, send_with_id)

    def _refuse(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        """Return the response to a request that is refused unread, if it is."""
        if self._api_key is None and not self._is_allowed(host := headers.get("host", "")):
            hint = "add it to the option allowed_hosts of the server, or set an API key"
            message = f"the server is not known as {short_repr(host)}; {hint}"
            return _error(403, message)
        if not _is_open(path) and not self._has_key(headers):
            message = "missing or wrong API key; send Authorization: Bearer KEY"
            return _error(401, message, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # Proxies may see another end.
            message = "send either Transfer-Encoding or Content-Length"
            return _error(400, message, headers={"Connection": "close"})
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


async def _discard_body(receive: Receive) -> None:
    """Read the body of a request, for a limited time, and keep nothing."""
    deadline = time.monotonic() + limits().max_body_seconds
    with suppress(asyncio.TimeoutError):
        while (await asyncio.wait_for(receive(), deadline - time.monotonic())).get("more_body"):
            pass


def _is_open(path: str) -> bool:
    """Tell whether a path needs no key: the playground asks for the key itself."""
    return path in ("/", "/health") or path.startswith("/playground/")


def _error(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(error_body(message, "invalid_request_error", code), status, headers)


def _too_large() -> str:
    return f"the body is larger than {limits().max_body_bytes:,} bytes"
