"""The site: routes to pages, errors as pages, static files with lasting addresses.

app = build_app(ShownRun(path), Site(base="/runs/demo", hosts=("*",)))
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any, cast

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from scope_selfplay import __version__
from scope_selfplay.errors import ScopeError
from scope_selfplay.schemas import Value
from scope_selfplay.store.folders import Stage
from scope_selfplay.viewer import pages
from scope_selfplay.viewer.app import HEADERS, Protection
from scope_selfplay.viewer.pages import Page, PageNotFoundError
from scope_selfplay.viewer.parameters import (
    BadParameterError,
    ComparisonParameters,
    Links,
    PackParameters,
    TaskListParameters,
    read_parameters,
)
from scope_selfplay.viewer.rendering import page_environment
from scope_selfplay.viewer.shown_run import ShownRun
from scope_selfplay.wire.guarded_http import LOOPBACK

THREADS = 4
"""Pages made at the same time; each holds what it shows in memory."""
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

FAILED = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>500</title></head>
<body><h1>This page could not be made</h1>
<p>The fault is in scope itself; what it was stands where <code>scope view</code> runs. Other pages may still work.</p>
</body></html>
"""


class Site(Value):
    """Where the site is reached: `base` is "" or begins with a slash and ends without; `hosts` are answered."""

    base: str = ""
    hosts: tuple[str, ...] = tuple(sorted(LOOPBACK))


def build_app(run: ShownRun, site: Site) -> Starlette:
    """An ASGI application; it closes the run when it shuts down."""
    files = _static_files()
    links = Links(site.base)
    addresses = {name: links("static", name, v=_version_of(content)) for name, content in files.items()}
    environment = page_environment(links, addresses)

    def render(page: Page, request: Request, status: int = 200) -> HTMLResponse:
        common = {"run_name": run.name, "here": request.url.path, "version": __version__}
        template = environment.get_template(page.template)
        return HTMLResponse(template.render(common | page.values), status_code=status)

    def shown(make: Callable[[Request], Page]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            return render(make(request), request)

        return respond

    def refused(request: Request, error: Exception) -> Response:
        status = _status_of(error)
        said = error.detail if isinstance(error, HTTPException) else str(error)
        return render(Page("refused.html", {"status": status, "said": said}), request, status)

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404, f"there is no {name}")
        headers = {"cache-control": "max-age=31536000, immutable"}
        return Response(files[name], media_type=TYPES[name.rpartition(".")[2]], headers=headers)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        run.close()

    routes = [Route(path, shown(make), name=path) for path, make in _pages(run).items()]
    app = Starlette(
        routes=[
            *routes,
            Route("/static/{name}", static),
            Route("/healthz", lambda request: JSONResponse({"ok": True})),
        ],
        exception_handlers=dict.fromkeys(
            (BadParameterError, PageNotFoundError, ScopeError, HTTPException), refused
        )
        | {Exception: failed},
        lifespan=lifespan,
    )
    app.add_middleware(cast(Any, Protection), hosts=site.hosts, base=site.base)
    return app


def failed(request: Request, error: Exception) -> Response:
    """The last page: our own bug. What it was stands in the server's log, where Starlette raises it again.

    It stands outside of `Protection` and needs no template, as these may be what failed.
    """
    return HTMLResponse(FAILED, status_code=500, headers=HEADERS)


def _pages(run: ShownRun) -> dict[str, Callable[[Request], Page]]:
    def asked(request: Request) -> TaskListParameters:
        return read_parameters(TaskListParameters, request.query_params)

    def compared(request: Request) -> ComparisonParameters:
        return read_parameters(ComparisonParameters, request.query_params)

    def task(request: Request) -> Page:
        values = request.path_params
        if values["stage"] not in list(Stage):
            raise PageNotFoundError(f"{values['stage']} is no stage; stages are {', '.join(Stage)}")
        return pages.task_page(
            run, (values["iteration"], Stage(values["stage"])), values["id"], asked(request)
        )

    return {
        "/": lambda request: pages.overview_page(run),
        "/tasks": lambda request: pages.list_page(run, asked(request)),
        "/tasks/{iteration:int}/{stage}/{id:path}": task,
        "/rejected": lambda request: pages.rejected_page(run),
        "/compare": lambda request: pages.compare_page(run, compared(request)),
        "/compare/{id:path}": lambda request: pages.compared_answers_page(
            run, request.path_params["id"], compared(request)
        ),
        "/training": lambda request: pages.training_page(run),
        "/prompts": lambda request: pages.prompts_page(
            run, read_parameters(PackParameters, request.query_params)
        ),
    }


def _status_of(error: Exception) -> int:
    match error:
        case HTTPException():
            return error.status_code
        case BadParameterError():
            return 400
        case PageNotFoundError():
            return 404
        case _:
            return 500


def _static_files() -> dict[str, bytes]:
    folder = resources.files("scope_selfplay.viewer") / "static"
    return {
        each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in TYPES
    }


def _version_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
