"""Serve the pages of the UI, and the API of the dataset page.

The other pages read what the user may see from Airflow's public API.
"""

import logging
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
_log = logging.getLogger(__name__)


def build_app() -> FastAPI:
    """Return the app that serves the pages, and the API of the dataset page if this Airflow supports it."""
    new_app = FastAPI(title="Merge", openapi_url=None)
    new_app.middleware("http")(add_security_headers)
    try:
        from airflow_merge_provider.plugins.dataset_api import router  # noqa: PLC0415 - it may be missing
    # The API needs classes of Airflow that are not public: without them, the API server starts all the same.
    except ImportError as error:
        _log.warning("the pages of datasets are off, as this Airflow lacks what they need: %s", error)
    else:
        new_app.include_router(router)
    new_app.mount("/", StaticFiles(directory=Path(__file__).with_name("static")), name="static")
    return new_app


async def add_security_headers(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Add the security headers to every response."""
    response = await call_next(request)
    response.headers.update(_HEADERS)
    if "/api/" in request.url.path:
        response.headers["Cache-Control"] = "no-store"
    return response


app = build_app()
