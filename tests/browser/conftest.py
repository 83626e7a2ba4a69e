"""A real Chromium on real servers: pages by WSGI on one port and sockets by ASGI on the next, as embedded.

Both run in threads of the test's process, on the test database, so that a test may look at
the rows that a click has made.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.http import FileResponse, HttpRequest, HttpResponse

from development.screenshots import CHROMIUM_NAMES

_HERE = Path(__file__).parent
_LONGEST = ("test_hostile_text", "test_administration")
_LAUNCH = ["--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update"]


@dataclass(frozen=True)
class Site:
    """Where the two servers of a test answer."""

    url: str
    live_url: str


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what lies here, and run it last: Playwright's event loop stays in the main thread once it was started."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker("browser")
    yield
    # The longest of them first: at the end, one of them would leave the other processes idle.
    items.sort(key=lambda item: item.path.is_relative_to(_HERE) * (2 - (item.path.stem in _LONGEST)))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program; without one the tests are skipped, or fail where the environment demands them."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if found:
        return found
    missing = (
        f"No Chromium was found: none of {', '.join(CHROMIUM_NAMES)} is on PATH and CHROMIUM is not set."
    )
    if os.environ.get("LOOPGUARD_REQUIRE_BROWSER"):
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any], chromium: str) -> dict[str, Any]:
    """As pytest-playwright has it, with the system's own browser; root has no sandbox."""
    # From here on Playwright's loop runs in this thread, and Django would refuse every query made beside it.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return {**browser_type_launch_args, "executable_path": chromium, "args": [*_LAUNCH, *sandbox]}


@pytest.fixture
def site(chromium: str, pooled: None, settings: Any) -> Iterator[Site]:
    """Both servers, running."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler

    class Static(StaticFilesHandler):
        def serve(self, request: HttpRequest) -> HttpResponse | FileResponse:
            """Let the browser keep what the pages of a test share, as it keeps files of `web`."""
            response = super().serve(request)
            response["Cache-Control"] = "max-age=600"
            return response

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a failing test shows what it saw."""

    from loopguard_site.asgi import application
    from tests.support import asgi_server

    web = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
    with asgi_server.serving(application) as live_url:
        addresses = Site(f"http://127.0.0.1:{web.server_address[1]}", live_url)
        # Before the handler is made: middleware reads these once.
        settings.PUBLIC_URL, settings.LIVE_URL = addresses.url, addresses.live_url
        settings.CSRF_TRUSTED_ORIGINS = [addresses.url, addresses.live_url]
        web.set_app(Static(WSGIHandler()))
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield addresses
        web.shutdown()
        web.server_close()
        thread.join(10)
