"""No query string, path, header or form makes any route fail. The routes are those of the URL configuration."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from django.db import transaction
from django.urls import URLPattern, get_resolver

from detection.api.app import api as ninja_api
from detection.console.alerting.alert_pages import TABS
from tests.admin.records import LOCAL_NETWORK, shared_records
from tests.console.scenes import screens
from tests.support.projects import make_key

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[1]
TEXTS = ("a\x00b", "²", "9" * 30, "x" * 300 + "\u202e%00[\ufffd", "\U00010348" * 300)
SEGMENTS = ("a%00b", "%C2%B2", "9" * 400, "%ff%5B%2e%2e")
HEADERS = {
    "HTTP_ACCEPT": "\xff;q=x,*/*;q=9e999", "HTTP_ACCEPT_ENCODING": "gzip;q=\xb2", "HTTP_ACCEPT_LANGUAGE": "x" * 5000,
    "HTTP_AUTHORIZATION": "Bearer lg_\xff\x7f", "HTTP_COOKIE": "a=\xff; loopguard-preferences=%00; messages=\xff", "HTTP_DATE": "\xff",
    "HTTP_CONTENT_ENCODING": "\xff", "HTTP_HX_REQUEST": "true", "HTTP_HX_TARGET": "\xff", "HTTP_IF_MODIFIED_SINCE": "9" * 400,
    "HTTP_IF_NONE_MATCH": '"', "HTTP_ORIGIN": "http://[", "HTTP_PREFER": "wait=\xb2", "HTTP_RANGE": "bytes=\xb2-",
    "HTTP_REFERER": "http://[", "HTTP_X_CSRFTOKEN": "\xff", "HTTP_X_FORWARDED_FOR": "\xff, [", "HTTP_X_FORWARDED_PROTO": "\xff",
    "HTTP_X_REQUEST_ID": "\xff" * 40, "CONTENT_LENGTH": "\xb2",
}  # fmt: skip
SINGLE_HEADERS = (
    {"HTTP_COOKIE": 'loopguard="' + r"\000" * 40 + '"'},
    {"HTTP_HOST": "["},
    {"CONTENT_TYPE": "application/x-www-form-urlencoded; charset=undefined"},
    {"CONTENT_TYPE": "multipart/form-data; boundary=\xff"},
    {"CONTENT_TYPE": "application/json; charset=zlib"},
)


def walk(patterns, prefix=""):
    """Yield every route of the URL configuration, with its parameters as ``<name>``."""
    for pattern in patterns:
        route = prefix + re.sub(r"^\^|\$$|\\Z$", "", str(pattern.pattern))
        if isinstance(pattern, URLPattern):
            yield re.sub(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>[^)]*\)", r"<\1\2>", route)
        else:
            yield from walk(pattern.url_patterns, route)


OPERATIONS = ninja_api.get_openapi_schema()["paths"]
ROUTES = sorted(set(walk(get_resolver().url_patterns)))


def field_names():
    """Return the names of query parameters and form fields that any route or page has."""
    names = {
        parameter["name"]
        for operations in OPERATIONS.values()
        for operation in operations.values()
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "query"
    }
    for file in (ROOT / "templates").rglob("*.html"):
        names |= {*re.findall(r'\bname="([\w-]+)"', file.read_text())}
    for folder in ("admin", "api", "console"):
        for file in (ROOT / "detection" / folder).rglob("*.py"):
            names |= {*re.findall(r'(?:GET|POST)\b(?:\.get|\.getlist|, |\[|\()*"(\w+)"', file.read_text())}
    return [*sorted(names), "o", "p", "q", "e", "_changelist_filters", "_popup", "_to_field"]


@pytest.fixture(scope="module")
def shared(django_db_setup, django_db_blocker):
    with shared_records(django_db_blocker) as (world, rows):
        world.client.force_login(world.user)
        yield world, rows, make_key(world.project)


@pytest.fixture
def records(shared, db, settings):
    """A signed-in superuser, a key, and a row of every kind, with the segments that name them in paths."""
    settings.ALERT_ALLOWED_NETWORKS = LOCAL_NETWORK
    world, rows = shared[0].copy(), shared[1]
    world.key = shared[2]
    world.client.raise_request_exception = False
    segments = {
        "project": world.project.slug, "session": "s-1", "name": "s-1", "incident_id": world.incident.public_id,
        "approval_id": rows["approval"].public_id, "notification_id": rows["notification"].public_id,
        "route_id": rows["alertroute"].public_id, "destination_id": rows["alertdestination"].public_id, "backend": "openai",
        "model": "gpt-5", "pattern": "get_*", "rung": "block", "object_id": "1", "content_type_id": "1", "app_label": "detection",
    }  # fmt: skip
    by_page = {"incidents": world.incident, "routes": rows["alertroute"], "deliveries": rows["notification"]}

    def fill(route, **hostile):
        known = {
            "public_id": next((r.public_id for page, r in by_page.items() if f"/{page}/<" in route), "x")
        }
        values = {**segments, **known, **hostile}
        return "/" + re.sub(r"<(\w+)>", lambda found: values.get(found[1], "x"), route)

    world.fill = fill
    return world


def failures(world, requests):
    """Send requests as a member with a session and a key; return those that failed. Nothing that they change is kept."""
    failed, cookies = [], world.client.cookies.output()
    for method, path, body, headers in requests:
        world.client.cookies.load(cookies.replace("Set-Cookie: ", ""))  # some routes sign out
        environ = {
            "HTTP_AUTHORIZATION": f"Bearer {world.key}",
            "CONTENT_TYPE": "application/x-www-form-urlencoded",
            "QUERY_STRING": path.partition("?")[2],
        }
        with transaction.atomic():
            response = world.client.generic(method, path, body, **environ | headers)
            b"".join(response.streaming_content if response.streaming else [response.content])
            transaction.set_rollback(True)
        if response.status_code >= 500:
            failed.append(f"{method} {path[:120]} {(response.exc_info or [''])[0]}")
    return failed


def methods(route):
    """Return the methods to try: those of an API operation, or of a page and its form."""
    described = OPERATIONS.get("/" + route.replace("<", "{").replace(">", "}"))
    return [method.upper() for method in described] if described else ["GET", "POST"]


def text_id(text):
    return ascii(text)[:40]


def in_turns(values, name, share=1):
    """Parametrise by the values and the routes to try: every route (or one of `share`) with one of the values.

    Among the long tests, every route is tried with all of them.
    """
    return pytest.mark.parametrize(
        (name, "routes"),
        [
            pytest.param(value, ROUTES[n :: share * len(values)], id=text_id(value))
            for n, value in enumerate(values)
        ]
        + [
            pytest.param(value, ROUTES, id=f"all-{text_id(value)}", marks=pytest.mark.long)
            for value in values
        ],
    )


@in_turns(["many", *TEXTS], "text")
def test_no_query_string_makes_any_route_fail(records, text, routes):
    given = dict.fromkeys(field_names(), text) if text != "many" else {f"a{n}": 1 for n in range(1001)}
    query = urlencode(given)
    assert not failures(
        records,
        [(methods(route)[0], f"{records.fill(route)}?{query}", "", {}) for route in routes],
    )


@in_turns(["many", *TEXTS], "text")
def test_no_form_makes_any_route_fail(records, text, routes):
    given = dict.fromkeys(field_names(), text) if text != "many" else {f"a{n}": 1 for n in range(1001)}
    body = urlencode(given)
    assert not failures(
        records,
        [("POST", records.fill(route), body, {}) for route in routes if not route.startswith("api/")],
    )


class Forms(HTMLParser):
    """The forms of a page that post: action, and (name, value, kind) of each field and button."""

    def __init__(self, page, path):
        super().__init__()
        self.forms, self.path = [], path
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "form":
            self.is_post = given.get("method", "").lower() == "post"
            if self.is_post:
                self.forms.append((given.get("action") or self.path, []))
        elif (
            self.forms
            and self.is_post
            and given.get("name")
            and tag in ("input", "select", "textarea", "button")
        ):
            kind = tag if tag != "input" else given.get("type", "text")
            self.forms[-1][1].append((given["name"], given.get("value") or "", kind))


TYPED = ("text", "number", "search", "textarea", "password")
CHOSEN = ("hidden", "select", "checkbox", "radio")


def submissions(forms, text, is_short):
    """Yield each form once a button, with the text in all fields that people type in, and in all others.

    If `is_short`, only once for each button, with the one and the other in turns.
    """
    number = 0
    for action, fields in forms:
        buttons = [(name, value) for name, value, kind in fields if kind == "button"] or [("", "")]
        for name, value in buttons:
            number += 1
            for kinds in ((TYPED, CHOSEN)[number % 2],) if is_short else (TYPED, CHOSEN):
                given = [(n, text if kind in kinds else v) for n, v, kind in fields if kind != "button"]
                yield "POST", action, urlencode([*given, (name, value)]), {}


@pytest.mark.parametrize(
    ("text", "is_short"),
    [
        ("²", True),
        pytest.param("\U00010348" * 257, False, marks=pytest.mark.long),
        pytest.param("²", False, marks=pytest.mark.long),
        pytest.param("9" * 30, False, marks=pytest.mark.long),
    ],
    ids=text_id,
)
def test_no_text_in_a_form_of_a_page_makes_its_route_fail(records, text, is_short):
    pages = [records.fill(route) for route in ROUTES if not route.startswith(("api/", "admin/"))]
    found = {}
    for path in (
        *pages,
        *screens(records).values(),
        *(f"{records.base}/alerts?tab={tab}" for tab, _ in TABS),
    ):
        page = records.client.get(path)
        if page.status_code == 200 and page["Content-Type"].startswith("text/html"):
            for action, fields in Forms(page.content.decode(), path).forms:
                found[action, tuple((name, kind) for name, _, kind in fields)] = (action, fields)
    assert len(found) > 30
    assert not failures(records, submissions(found.values(), text, is_short))


@in_turns(SEGMENTS, "segment")
def test_no_path_makes_any_route_fail(records, segment, routes):
    assert not failures(
        records,
        [
            (m, quote(records.fill(route, **{name: "\x01"})).replace("%01", segment), "", {})
            for route in routes
            for name in re.findall(r"<(\w+)>", route)
            for m in methods(route)
        ],
    )


@in_turns([HEADERS], "headers", share=2)
def test_no_header_makes_any_route_fail(records, headers, routes):
    assert not failures(
        records, [(m, records.fill(route), "a=1", headers) for route in routes for m in methods(route)]
    )


# What reads these stands before the routes: some of them are enough.
@in_turns(SINGLE_HEADERS, "headers", share=4)
def test_no_header_that_hides_the_others_makes_any_route_fail(records, headers, routes):
    assert not failures(
        records, [(m, records.fill(route), "a=1", headers) for route in routes for m in methods(route)]
    )
