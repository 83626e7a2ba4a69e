"""The search page, the palette, and the erasure of what a search has found."""

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse

from detection.models import AuditEntry, Erasure, Role, Session
from detection.services.audit import SYSTEM
from detection.services.projects import projects
from detection.services.retention import erasure
from detection.services.search import indexing
from tests.console.scenes import loop
from tests.support.projects import make_member, make_project


@pytest.fixture
def project(db):
    return make_project("support")


def stored(project, name, arguments='{"customer":"ACME-48213"}', **more):
    found = loop(project, name, arguments=arguments, **more)
    indexing.index_texts()
    return found


@pytest.fixture
def member(client, project):
    def sign_in(role):
        person = get_user_model().objects.filter(username=f"m-{role}").first()
        client.force_login(person or make_member(project, role, f"m-{role}"))
        return client

    return sign_in


def names(client, q):
    answer = client.get(f"/p/support/palette?q={q}")
    assert answer.status_code == 200
    return {(one["group"], one["words"]) for one in answer.json()["items"]}


def test_the_page_shows_hits_with_their_call_and_says_how_far_it_got(project, member):
    stored(project, "tickets/1")
    page = member(Role.VIEWER).get("/p/support/search?q=48213").content.decode()
    assert ">48213</mark>" in page
    assert 'href="/p/support/sessions/tickets/1?call=' in page
    assert "That is everything that is stored." in page
    # Without scripts, which the palette needs, the page is reached by a link.
    assert '<a class="btn jump" href="/p/support/search" data-open-palette>' in page
    assert "Nothing found" in member(Role.VIEWER).get("/p/support/search?q=absent").content.decode()


def test_the_tabs_count_and_show_what_has_the_words_in_its_name(project, member):
    stored(project, "tickets/48213")
    client = member(Role.VIEWER)
    page = client.get("/p/support/search?q=48213").content.decode()
    assert 'href="?q=48213&amp;in=sessions"' in page
    shown = client.get("/p/support/search?q=48213&in=sessions").content.decode()
    assert 'href="/p/support/sessions/tickets/48213"' in shown
    assert "</mark>" not in shown
    assert "Nothing here has these words" in client.get("/p/support/search?q=48213&in=loops").content.decode()


def test_hits_are_escaped_and_errors_are_shown(project, member):
    stored(project, "s-1", '{"x":"<script>alert(48213)</script>"}')
    page = member(Role.VIEWER).get("/p/support/search?q=alert(48213)").content.decode()
    assert ">alert(48213)</mark>" in page
    assert "<script>alert" not in page
    projects.update_project(project.pk, SYSTEM, is_searchable=False)
    assert "keeps no index" in member(Role.VIEWER).get("/p/support/search?q=x").content.decode()
    assert member(Role.VIEWER).get("/p/support/search?q=x&cursor=bogus").status_code in (200, 404)


def test_a_search_is_in_the_audit_without_its_words(project, member):
    stored(project, "s-1")
    member(Role.VIEWER).get("/p/support/search?q=48213")
    (entry,) = AuditEntry.objects.filter(action="contents.search")
    assert (entry.project_id, entry.actor) == (project.pk, "m-viewer")
    assert "48213" not in str(entry.after) + entry.subject


def test_another_project_s_page_finds_nothing(project, member):
    stored(make_project("rivals"), "secret-session", '{"x":"needle"}', agent="secret-agent")
    page = member(Role.VIEWER).get("/p/support/search?q=needle").content.decode()
    assert "Nothing found" in page
    assert names(member(Role.VIEWER), "secret") == set()
    assert member(Role.VIEWER).get("/p/rivals/palette?q=secret").status_code == 404


def test_the_palette_finds_everything_with_a_name(project, member):
    stored(project, "tickets/refund-1", agent="refund-agent")
    found = names(member(Role.VIEWER), "refund")
    assert {("Agent", "refund-agent"), ("Session", "tickets/refund-1")} <= found
    assert ("Go to", "Insights") in names(member(Role.VIEWER), "insight")
    assert ("Go to", "Audit") in names(member(Role.VIEWER), "audit")
    assert any(group == "Setting" for group, _ in names(member(Role.VIEWER), "identical"))
    assert ("Member", "m-viewer") in names(member(Role.VIEWER), "m-view")
    tool = Session.objects.get().last_tool
    assert {("Tool", tool)} <= names(member(Role.VIEWER), tool)
    assert any(group == "Loop" for group, _ in names(member(Role.VIEWER), tool))
    assert names(member(Role.VIEWER), "") == set()


def test_the_palette_offers_what_the_person_may_use(project, member):
    assert ("Do", "Invite a member") in names(member(Role.ADMIN), "invite")
    assert ("Go to", "Erasure") in names(member(Role.ADMIN), "erasure")
    assert names(member(Role.VIEWER), "invite") == set()
    assert names(member(Role.VIEWER), "erasure") == set()
    assert ("Do", "Answer held calls") in names(member(Role.OPERATOR), "answer")


def test_every_entry_leads_somewhere(project, member):
    client = member(Role.ADMIN)
    stored(project, "s-1", agent="zed")
    for q in ("e", "a", "s", "i", "o"):
        for entry in client.get(f"/p/support/palette?q={q}").json()["items"]:
            url = entry["url"].partition("#")[0]
            assert client.get(url, follow=True).status_code == 200, entry


def test_sessions_that_contain_words_are_ticked_and_erased_with_receipts(project, member):
    for name in ("s-1", "s-2", "s-3"):
        stored(project, name)
    stored(project, "s-4", '{"customer":"other"}')
    client = member(Role.ADMIN)
    url = reverse("console:erasures", args=["support"])
    page = client.get(url, {"of": "contents", "name": "48213"}).content.decode()
    assert page.count('name="session"') == 3
    assert 'value="s-4"' not in page
    ticked = {"of": "contents", "name": "48213", "session": ["s-1", "s-3"]}
    assert client.post(url, ticked | {"confirm": "3"}).status_code == 422
    assert not Erasure.objects.exists()
    client.post(url, ticked | {"confirm": "2"})
    erasure.run_waiting(lambda: False)
    assert {*Session.objects.values_list("external_id", flat=True)} == {"s-2", "s-4"}
    assert [row.state for row in Erasure.objects.all()] == ["finished", "finished"]
    assert client.get(url, {"of": "contents", "name": "48213"}).content.decode().count('name="session"') == 1
    assert client.get(url, {"of": "contents", "name": ""}).status_code == 200


def test_sessions_of_a_customer_are_found_by_metadata_and_erased(project, member):
    for name, customer in (("s-1", "acme"), ("s-2", "acme"), ("s-3", "globex")):
        stored(project, name)
        Session.objects.filter(external_id=name).update(metadata={"customer": customer, "region": "eu"})
    client, url = member(Role.ADMIN), reverse("console:erasures", args=["support"])
    asked = {"of": "metadata", "name": "customer=acme"}
    page = client.get(url, asked).content.decode()
    assert (page.count('name="session"'), 'value="s-3"' in page) == (2, False)
    client.post(url, asked | {"session": ["s-1", "s-2"], "confirm": "2"})
    erasure.run_waiting(lambda: False)
    assert {*Session.objects.values_list("external_id", flat=True)} == {"s-3"}
    for vague in ("customer", "customer=", "=acme", ""):
        page = client.get(url, {"of": "metadata", "name": vague}).content.decode()
        assert "as in customer=acme" in page, vague
        assert 'name="session"' not in page, vague


def test_only_admins_erase_what_they_have_found(project, member):
    stored(project, "s-1")
    url = reverse("console:erasures", args=["support"])
    assert (
        member(Role.OPERATOR).post(url, {"of": "contents", "name": "48213", "session": ["s-1"]}).status_code
        == 403
    )
    assert not Erasure.objects.exists()
