"""`/views`: filters of lists under names, the same that the console shows."""

from urllib.parse import urlsplit

import pytest
from django.test import Client

from detection.models import AuditEntry, SavedView
from detection.selectors.saved_views import MAX_VIEWS
from tests.support.projects import make_member

COSTLY = {"list": "incidents", "name": " Costly  coder ", "q": "agent:coder", "sort": "-cost", "range": "7d"}


def test_a_view_is_saved_listed_shown_in_the_console_renamed_and_deleted(api, project):
    api.loop("s-1", agent="coder")
    saved = api.put("/views", COSTLY)
    view = saved.json()
    assert saved.status_code == 200
    assert [view[name] for name in ("name", "q", "range", "sort")] == [
        "Costly coder",
        "agent:coder",
        "7d",
        "-cost",
    ]
    assert len(api.get("/incidents", q=view["q"], sort=view["sort"]).json()["items"]) == 1
    other = api.put("/views", {"list": "notifications", "name": "All"}).json()
    assert (other["q"], other["sort"]) == ("", "-created")
    assert api.put("/views", {"list": "incidents", "name": "Own"}).json()["q"] == ""
    assert [one["name"] for one in api.get("/views").json()["items"]] == ["Costly coder", "Own", "All"]
    assert [one["id"] for one in api.get("/views", list="notifications").json()["items"]] == [other["id"]]
    replaced = api.put("/views", COSTLY | {"q": ""}).json()
    assert (replaced["id"], replaced["q"]) == (view["id"], "")
    api.put("/views", COSTLY)
    person = Client()
    person.force_login(make_member(project))
    for one in (view, other):
        shown = person.get(one["links"]["view"].removeprefix(_root(one["links"]["view"])), follow=True)
        current = shown.content.decode().partition('class="popover views"')[2].partition(one["name"])[0]
        assert 'aria-current="true"' in current.rpartition("<a")[2], one["name"]
    renamed = api.patch(f"/views/{view['id']}", {"name": "Expensive"}).json()
    assert (renamed["name"], renamed["links"]) == ("Expensive", view["links"])
    taken = api.patch(f"/views/{view['id']}", {"name": "Own"})
    assert (taken.status_code, taken.json()["path"]) == (409, "name")
    assert api.delete(f"/views/{view['id']}").status_code == 204
    assert api.delete(f"/views/{view['id']}").status_code == 404
    actions = AuditEntry.objects.filter(action__startswith="view.").order_by("pk")
    assert {entry.actor.partition(":")[0] for entry in actions} == {"key"}
    assert [entry.action for entry in actions][-2:] == ["view.rename", "view.delete"]


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"list": "users"}, "list"),
        ({"name": " "}, "name"),
        ({"name": "a\x07b"}, "name"),
        ({"q": "nofield:1"}, "q"),
        ({"range": "soon"}, "range"),
        ({"sort": "-agent"}, "sort"),
        ({"share": True}, "share"),
    ],
)
def test_what_a_list_cannot_apply_is_not_saved(api, wrong, path):
    answer = api.put("/views", COSTLY | wrong)
    assert (answer.status_code, answer.json()["path"]) == (422, path), answer.text
    assert not SavedView.objects.exists()


def test_a_list_has_at_most_fifty_views(api, project):
    SavedView.objects.bulk_create(
        SavedView(project=project, list="incidents", name=f"v{number}") for number in range(MAX_VIEWS)
    )
    assert api.put("/views", COSTLY).json()["path"] == "name"
    assert api.put("/views", COSTLY | {"name": "v7"}).status_code == 200
    assert api.get("/views", lists="incidents").json()["code"] == "unknown_parameter"


def _root(url):
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
