"""The playground: a web page at / that generates and inspects texts with the server's models."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gpt2np.view import MEDIA_TYPES, web_files

_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data:; "
    "style-src-elem 'self'; style-src-attr 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_playground(app: FastAPI) -> None:
    """Add the playground's page and the files that it loads."""
    contents = web_files()
    headers = {
        "Content-Security-Policy": _POLICY,
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
