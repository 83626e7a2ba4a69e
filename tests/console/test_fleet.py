"""All projects: what happens in each that the person may see, and the loops that several have."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import Incident, Project, Session
from detection.services.maintenance.hourly_counts import count_calls
from tests.console.scenes import loop, make_world
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db


def words_of(html):
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def row_of(page, name):
    table = page.partition('aria-label="Projects"')[2].partition("</table>")[0]
    (row,) = (one for one in table.split("<tr>") if f">{name}<" in one)
    return words_of(row.rpartition("</tr>")[0])


@pytest.fixture
def world():
    world = make_world()
    second = make_project("second", name="Night shift")
    second.memberships.create(user=world.user, role="viewer")
    loop(world.project, "first", tool="search_paid", agent="one", calls=5, cost_usd=0.5)
    loop(second, "second", tool="search_paid", agent="two", calls=5, cost_usd=0.25)
    Project.objects.update(first_event_at=timezone.now() - timedelta(days=3))
    count_calls()
    return world


def test_each_project_shows_what_its_own_pages_show(world):
    page = world.client.get("/projects").content.decode()
    for slug in (world.project.slug, "second"):
        project = Project.objects.get(slug=slug)
        row = row_of(page, project.name)
        now = words_of(world.client.get(f"/p/{slug}/now").content.decode())
        looping = re.search(r"(\d+) sessions? (?:is|are) looping now", now)
        assert f"{looping[1]} now" in row
        insights = world.client.get(f"/p/{slug}/insights?range=7d").content.decode()
        cost = words_of(insights.partition(">Cost of loops</dt>")[2].partition("</dd>")[0]).split()[0]
        assert cost.startswith("$")
        assert row.rpartition("$")[2].split()[0] == cost[1:]
    summary = words_of(page.partition('class="lede"')[2].partition("</section>")[0])
    assert re.search(r"sessions are looping now in 2 of 2 projects", summary)
    assert "$" in summary


def test_a_loop_that_several_projects_have_is_one_line(world):
    page = world.client.get("/projects").content.decode()
    shared = page.partition("The same loop in several projects")[2].partition("</section>")[0]
    assert "2 projects, 2 agents, 2 runs" in words_of(shared)
    spent = sum(one.cost_usd for one in Incident.objects.filter(tool="search_paid"))
    assert f"${spent:.2f}" in shared
    for url in re.findall(r'href="([^"]+/loops\?[^"]+)"', shared):
        assert "search_paid" in world.client.get(url.replace("&amp;", "&")).content.decode()
    Incident.objects.filter(agent="two").update(label="false_alarm")
    assert "The same loop in several projects" not in world.client.get("/projects").content.decode()


def test_what_the_person_may_not_see_counts_nowhere(world):
    foreign = make_project("foreign", name="Foreign")
    loop(foreign, "third", tool="search_paid", agent="three", calls=8, cost_usd=99)
    archived = make_project("archived", name="Old work")
    archived.memberships.create(user=world.user, role="viewer")
    loop(archived, "fourth", tool="search_paid", agent="four", calls=8, cost_usd=99)
    Project.objects.filter(pk=archived.pk).update(archived_at=timezone.now())
    page = world.client.get("/projects").content.decode()
    assert "Foreign" not in page
    assert row_of(page, "Old work").endswith("Archived –")
    assert "2 projects, 2 agents, 2 runs" in words_of(page)
    assert "$99" not in page.replace(",", "")


def test_a_project_without_calls_for_a_day_is_not_receiving(world):
    assert "Not receiving" not in world.client.get("/projects").content.decode()
    silent = Session.objects.filter(project__slug="second")
    silent.update(last_event_at=timezone.now() - timedelta(days=2))
    assert "Not receiving last call" in row_of(world.client.get("/projects").content.decode(), "Night shift")
    Project.objects.filter(slug="second").update(first_event_at=None)
    assert "No calls yet" in row_of(world.client.get("/projects").content.decode(), "Night shift")
