"""Serve the static pages of the UI, which read the data the user may see from Airflow's public API."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

_HEADERS = {
    # Allow only the package's own files, and embedding only in Airflow: scripts in report values cannot run.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

app = FastAPI(title="Merge", openapi_url=None)


@app.middleware("http")
async def add_security_headers(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Add the security headers to every response."""
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


app.mount("/", StaticFiles(directory=Path(__file__).with_name("static")), name="static")
