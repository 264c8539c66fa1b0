"""The static pages of the UI: they hold no data and read what the user may see from Airflow's public API."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

_HEADERS = {
    # Nothing but our own files, shown in nothing but Airflow itself: a value in a report cannot run.
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
    """Send the pages' security headers with every answer."""
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


app.mount("/", StaticFiles(directory=Path(__file__).with_name("static")), name="static")
