"""Checks of every request before its body is read: API key, size."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt2np.limits import limits
from gpt2np.server.responses import error_body

_TOO_LARGE = "the body is larger than {:,} bytes"
_MAX_DISCARDED = 1 << 30  # bytes


class Guard:
    """ASGI middleware that refuses requests without the API key, and large bodies."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        """Refuse requests without `api_key`, if it is not None; /health and the
        playground's files need no key."""
        self._app = app
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 413, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, limit = Headers(scope=scope), limits().max_body_bytes
        if not _is_open(scope["path"]) and not self._has_key(headers):
            message = "missing or wrong API key; send Authorization: Bearer KEY"
            body = error_body(message, "invalid_request_error", "invalid_api_key")
            await JSONResponse(body, 401)(scope, receive, send)
            return
        length = headers.get("content-length", "0")
        if not (length.isdecimal() and len(length) < 20 and int(length) <= limit):
            await _discard_body(receive)  # else the client may not read the answer
            body = error_body(_TOO_LARGE.format(limit), "invalid_request_error")
            await JSONResponse(body, 413, {"Connection": "close"})(scope, receive, send)
            return
        n_bytes = 0

        async def limited_receive() -> Message:  # a body in chunks has no content-length
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > limit:
                raise HTTPException(413, _TOO_LARGE.format(limit))
            return message

        await self._app(scope, limited_receive, send)

    def _has_key(self, headers: Headers) -> bool:
        if self._api_key is None:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        is_same = hmac.compare_digest(key.encode("latin-1"), self._api_key.encode())
        return is_same and scheme.lower() == "bearer"


def _is_open(path: str) -> bool:
    """Tell whether a path needs no key: the playground asks for the key itself."""
    return path in ("/", "/health") or path.startswith("/playground/")


async def _discard_body(receive: Receive) -> None:
    """Read the body of a request, up to a limit, and keep nothing."""
    n_bytes, is_more = 0, True
    while is_more and n_bytes < _MAX_DISCARDED:
        message = await receive()
        n_bytes += len(message.get("body", b""))
        is_more = message.get("more_body", False)
