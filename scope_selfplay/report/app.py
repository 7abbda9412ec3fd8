"""The site: routes to pages, errors as pages, static files, and what protects them.

    app = build_app(ShownRun(path), Site(base="/runs/demo", hosts=("*",)))

The pages show text that models wrote. It is escaped; should a hole be found in that, the policy in `HEADERS` still
allows no script, style, frame, form or connection but this server's.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
import duckdb
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scope_selfplay.base.errors import ScopeError
from scope_selfplay.base.values import Value
from scope_selfplay.evaluation.folder import EvaluationReader, is_evaluation
from scope_selfplay.net.guard import LOOPBACK
from scope_selfplay.net.serve import host_of, serve_until_stopped
from scope_selfplay.report import pages
from scope_selfplay.report.pages import Page, PageNotFoundError, ShownRun, ShownRuns
from scope_selfplay.report.rendering import BadParameterError, link, page_environment
from scope_selfplay.store.folder import RunFolder

THREADS = 4
"""Pages made at the same time; a page holds what it shows in memory."""

Shown = ShownRun | ShownRuns | EvaluationReader
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

FAILED = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>500</title></head>
<body><h1>This page could not be made</h1>
<p>The fault is in scope itself; the error is shown where <code>scope view</code> runs. Other pages may still work.</p>
</body></html>
"""


class Site(Value):
    """Where the site is reached: `base` is "" or begins with a slash and ends without; `hosts` are answered."""

    base: str = ""
    hosts: tuple[str, ...] = tuple(sorted(LOOPBACK))
    above: str = ""
    """The address of the list that it belongs to."""


def build_app(shown: Shown, site: Site) -> Starlette:
    """An ASGI application for a run or a folder of runs, closed when it shuts down, or for a folder of `scope eval`."""
    first, makers = {
        ShownRun: ("Overview", pages.OF_RUN),
        ShownRuns: ("Runs", pages.OF_RUNS),
        EvaluationReader: ("Leaderboard", pages.OF_EVALUATION),
    }[type(shown)]
    # The menu has every page that needs no further name.
    whole = [path.removeprefix("/") for path in makers if "{" not in path]
    navigation = {path.capitalize() or first: path for path in whole}
    environment = page_environment(site.base, navigation)
    environment.globals["above"] = site.above

    def render(page: Page, request: Request, status: int = 200) -> HTMLResponse:
        common = {"run_name": shown.name, "here": request.url.path}
        template = environment.get_template(page.template)
        return HTMLResponse(template.render(common | page.values), status_code=status)

    def responds_with(make: Callable[..., Page]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            return render(_page(make, shown, request), request)

        return respond

    def refused(request: Request, error: Exception) -> Response:
        statuses = {BadParameterError: 400, PageNotFoundError: 404}
        status = error.status_code if isinstance(error, HTTPException) else statuses.get(type(error), 500)
        message = error.detail if isinstance(error, HTTPException) else str(error)
        return render(Page("refused.html", status=status, message=message), request, status)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        if not isinstance(shown, EvaluationReader):
            shown.close()

    expected = (BadParameterError, PageNotFoundError, ScopeError, HTTPException)
    app = Starlette(
        routes=[
            *(Route(path, responds_with(make), name=path) for path, make in makers.items()),
            Mount("/static", StaticFiles(packages=[("scope_selfplay.report", "static")])),
            Route("/healthz", lambda request: JSONResponse({"ok": True})),
            *([Mount("/runs/{run}", app=_below(shown, site))] if isinstance(shown, ShownRuns) else []),
        ],
        exception_handlers={**dict.fromkeys(expected, refused), Exception: failed},
        lifespan=lifespan,
    )
    app.add_middleware(cast(Any, Protection), hosts=site.hosts, base=site.base)
    return app


def _page(make: Callable[..., Page], shown: Shown, request: Request) -> Page:
    """Raises PageNotFoundError where what is shown has gone, or goes while the page is made, and for a lost file."""
    place = shown.folder.spec if isinstance(shown, EvaluationReader) else shown.place
    try:
        page = make(shown, request.query_params, **request.path_params)
    except (FileNotFoundError, duckdb.Error, ScopeError) as error:
        # Some of its files may go before others do.
        if place.exists() and not isinstance(error, FileNotFoundError | duckdb.IOException):
            raise
        if lost := shown.lost() if isinstance(shown, ShownRun) else None:
            advice = "restore it or remove the stage folder; pages that do not need it go on"
            raise PageNotFoundError(f"{lost} was removed since the stage was finished; {advice}") from None
    else:
        if place.exists():
            return page
    raise PageNotFoundError(f"{place} was deleted or moved since `scope view` began")


def _below(runs: ShownRuns, site: Site) -> ASGIApp:
    """The pages of each run."""

    @lru_cache
    def pages_of(run: ShownRun, name: str) -> Starlette:
        own = Site(base=link(site.base, "runs", name), hosts=site.hosts, above=link(site.base))
        return build_app(run, own)

    async def below(scope: Scope, receive: Receive, send: Send) -> None:
        name, before = scope["path_params"]["run"], scope["root_path"]
        run = await anyio.to_thread.run_sync(runs.run, name)
        inner = {**scope, "path": scope["path"].removeprefix(before), "root_path": "", "path_params": {}}
        await pages_of(run, name)(inner, receive, send)

    return below


def failed(request: Request, error: Exception) -> Response:
    """The page for our own bug; the error itself is in the server's log, as Starlette raises it again.

    It is made outside of `Protection` and without a template, as these may be what failed.
    """
    return HTMLResponse(FAILED, status_code=500, headers=HEADERS)


class Protection:
    """Wraps the site: refuses foreign host names, takes the base path off, adds `HEADERS` to every answer.

    A page of another site cannot read a run through a host name that resolves to this machine (DNS rebinding):
    only `hosts` are answered, "*" for any. The base path is optional in requests, as some ingresses take it off
    before they pass a request on.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], base: str) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        host = host_of(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
        if "*" not in self._hosts and host not in self._hosts:
            refusal = f"the host {host!r} is not answered; start with --allow-host {host} to allow it\n"
            await PlainTextResponse(refusal, status_code=421)(scope, receive, guarded)
            return
        path: str = scope["path"]
        if self._base and (path == self._base or path.startswith(self._base + "/")):
            scope = {**scope, "path": path[len(self._base) :] or "/"}
        await self._app(scope, receive, guarded)


def serve_run(path: Path, site: Site, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `announce` gets the address. Port 0 takes a free one.

    Raises RecordError when the folder is neither a run nor an evaluation and holds no run, and as `listen` does.
    """
    several = not RunFolder(path).config.is_file() and any(path.glob("*/run.yaml"))
    kind = EvaluationReader if is_evaluation(path) else ShownRuns if several else ShownRun
    app = build_app(kind(path), site)

    def told(url: str) -> None:
        announce(f"{url.removesuffix('/v1')}{site.base}/")

    async def serve() -> None:
        async with app.router.lifespan_context(app):
            await serve_until_stopped(app, host=host, port=port, on_ready=told, browsers=True)

    asyncio.run(serve())
