"""The files of the page at ``/ui/``, as ``make console`` builds them; they hold no data."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from aiohttp import web

from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import PAGE

INDEX = "index.html"
_ASSETS = "assets/"
"""Files whose names have a hash of their content."""
_YEAR_S = 31_536_000
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
        " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def find_files(folder: Path | None = None) -> Mapping[str, Path]:
    """Return the files of the page by their names below ``/ui/``; empty if it was not built."""
    if folder is None:
        folder = Path(str(resources.files("streambroker_operator"))) / "ui" / "dist"
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path for name, path in files.items() if path.is_file()}


def page_routes(files: Mapping[str, Path]) -> list[web.RouteDef]:
    """Return the routes that serve these files and nothing else."""

    async def to_folder(_: web.Request) -> web.Response:
        # Relative, so that it is right behind a path prefix, too.
        return web.Response(status=308, headers={**HEADERS, "Location": f"{PAGE[1:]}/"})

    async def get_file(request: web.Request) -> web.Response:
        name = request.match_info["file"] or INDEX
        path = files.get(name)
        if path is None:
            raise RequestError(404, "NotFound", _missing_message(request, files), headers=HEADERS)
        lasting = name.startswith(_ASSETS)
        cache = f"public, max-age={_YEAR_S}, immutable" if lasting else "no-cache"
        return web.Response(
            body=await asyncio.to_thread(path.read_bytes),
            content_type=mimetypes.guess_type(name)[0] or "application/octet-stream",
            charset="utf-8" if name.endswith((".html", ".js", ".css", ".svg")) else None,
            headers={**HEADERS, "Cache-Control": cache},
        )

    return [web.get(PAGE, to_folder), web.get(f"{PAGE}/{{file:.*}}", get_file)]


def _missing_message(request: web.Request, files: Mapping[str, Path]) -> str:
    if INDEX in files:
        return f"There is nothing at {request.path}."
    return (
        "The page was not built with this broker: run `make console` in its sources and start it"
        " again. REST and the command line work without it."
    )
