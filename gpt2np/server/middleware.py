"""Checks of every request before its body is read: API key, size."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt2np.limits import limits
from gpt2np.server.responses import error_body


class BodyTooLargeError(Exception):
    """The body of a request is larger than `Limits.max_body_bytes`."""


class Guard:
    """ASGI middleware that refuses requests without the API key, and large bodies."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        """Refuse requests without `api_key`, if it is not None; /health needs no key."""
        self._app = app
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 413, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, limit = Headers(scope=scope), limits().max_body_bytes
        if scope["path"] != "/health" and not self._has_key(headers):
            message = "missing or wrong API key; send Authorization: Bearer KEY"
            body = error_body(message, "invalid_request_error", "invalid_api_key")
            await JSONResponse(body, 401)(scope, receive, send)
            return
        length = headers.get("content-length", "0")
        if not (length.isdecimal() and len(length) < 20 and int(length) <= limit):
            await _too_large(scope, receive, send)
            return
        n_bytes, has_started = 0, False

        async def limited_receive() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > limit:
                raise BodyTooLargeError
            return message

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, limited_receive, watched_send)
        except BodyTooLargeError:
            if not has_started:
                await _too_large(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        if self._api_key is None:
            return True
        expected = f"Bearer {self._api_key}".encode()
        return hmac.compare_digest(headers.get("authorization", "").encode(), expected)


async def _too_large(scope: Scope, receive: Receive, send: Send) -> None:
    message = f"the body is larger than {limits().max_body_bytes:,} bytes"
    body = error_body(message, "invalid_request_error", "request_too_large")
    await JSONResponse(body, 413, {"Connection": "close"})(scope, receive, send)
