"""The playground: a web page at / that generates and inspects texts with the server's models."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gpt2np.view import MEDIA_TYPES, content_hash, joined_modules, joined_styles, web_files


def add_playground(app: FastAPI) -> None:
    """Add the playground's page and the files that it loads."""
    contents = web_files()
    headers = {
        "Content-Security-Policy": _content_security_policy(),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return await playground_file("index.html")

    @app.get("/playground/{name}", include_in_schema=False)
    async def playground_file(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404, f"there is no /playground/{name[:60]}")
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(contents[name], media_type=media_type, headers=headers)


def _content_security_policy() -> str:
    """Allow the server's own files, and what is inline in the page of `gpt2np explain`.

    The playground opens the explain page as a blob, which inherits this policy.
    """
    script_hash, style_hash = content_hash(joined_modules()), content_hash(joined_styles())
    return (
        f"default-src 'none'; script-src 'self' '{script_hash}'; connect-src 'self'; "
        f"img-src data:; style-src-elem 'self' '{style_hash}'; style-src-attr 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
