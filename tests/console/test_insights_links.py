"""Every number and chart of Insights leads to the rows behind it: each list has as many rows as its link says."""

import re
from datetime import datetime
from html import unescape
from urllib.parse import parse_qs

import pytest
from django.db.models import Sum
from django.utils import timezone

from detection.models import CallCount, Incident, JudgeCall, Session
from detection.services.incidents import loop_triage
from detection.services.maintenance.hourly_counts import count_calls
from tests.api.conftest import Api, speaking
from tests.console.scenes import answer, ask, loop, make_world
from tests.support.agents import OPERATOR
from tests.support.alerts import fine_run
from tests.support.projects import make_key
from tests.support.shared_rows import shared_rows

pytestmark = pytest.mark.django_db
LINK = re.compile(
    r'<a\s[^>]*?href="([^"]+)"\s+title="([\d,]+) (incident|session)s?"[^>]*>(.*?)</a>',
    re.DOTALL,
)


@pytest.fixture(scope="module")
def shared_world(django_db_setup, django_db_blocker):
    with shared_rows(django_db_blocker):
        world = make_world()
        for number, tool in enumerate(("bash", "grep", "bash")):
            loop(world.project, f"more-{number}", tool=tool, agent="coder", calls=9)
        loop(world.project, "leaves", tool="read", agent="reader", calls=5)
        for number in range(6):
            ask(
                world.project,
                "leaves",
                50 + number,
                tool="read",
                agent="reader",
                arguments=f'{{"n": {number}}}',
            )
            answer(world.project, "leaves", 50 + number, f"news {number}")
        rows = [*Incident.objects.order_by("pk")]
        Incident.objects.filter(pk=rows[2].pk).update(backend="proxy/eu", model="vendor/model")
        loop_triage.confirm(world.project.pk, rows[0].loop.public_id, OPERATOR, run=rows[0].public_id)
        fine_run(rows[1], OPERATOR, "poll")
        fine_run(rows[2], OPERATOR)
        for incident, outcome, label in (
            (rows[0], "accepted", "right"),
            (rows[0], "accepted", ""),
            (rows[3], "denied", "wrong"),
        ):
            JudgeCall.objects.create(
                project=world.project, incident=incident, session_id=incident.session_id,
                calls_digest=incident.calls_digest, outcome=outcome, label=label,
            )  # fmt: skip
        count_calls()
        yield world


def rows_of(world, url):
    """How many rows the list behind a link has."""
    path, _, query = unescape(url).partition("?")
    name = {"history": "incidents", "sessions": "sessions"}[path.rpartition("/")[2]]
    lines = world.client.get(f"{world.base}/export/{name}?{query}&format=jsonl").getvalue()
    return len(lines.splitlines())


@pytest.mark.parametrize(
    "query",
    [
        "by=detector",
        "board=rate&by=tool",
        "board=protection&by=model&range=30d",
        "board=protection&by=tool&q=agent:coder",
    ],
)
def test_every_link_leads_to_as_many_rows_as_it_says(world, query):
    page = world.client.get(f"{world.base}/insights?{query}").content.decode()
    main = page.partition("<main")[2]
    links = LINK.findall(main)
    assert len(links) >= 10
    for url, count, noun, words in links:
        assert rows_of(world, url) == int(count.replace(",", "")), (url, words)
        counts_rows = noun == "incident" and not re.search("blocked|reaction|judge|sort=", url)
        if counts_rows and re.fullmatch(r"\s*[\d,]+\s*", words):
            assert words.strip() == count, url
    if "agent" not in query:
        assert f'title="{Session.objects.count()} sessions"' in main
    if "protection" in query and "agent" not in query:
        terms = (
            "label%3Atrue_loop",
            "reason%3Apoll",
            "reason%3Anone",
            "reaction%3A",
            "judge%3Aaccepted_right",
        )
        for term in terms:
            assert any(term in url for url, *_ in links), term


@pytest.mark.parametrize("by", ["model", "tool", "agent", "detector"])
def test_no_number_of_a_table_is_without_its_rows(world, by):
    page = world.client.get(f"{world.base}/insights?board=protection&by={by}").content.decode()
    cells = re.findall(r'<td class="num[^"]*">(.*?)</td>', page.partition("Group by")[2], re.DOTALL)
    plain = [
        words
        for cell in cells
        if "<a " not in cell
        and "computed" not in cell
        and (words := " ".join(re.sub("<.*?>", "", cell).split()))
    ]
    assert len(cells) > 20
    assert {words for words in plain if re.search("[1-9]", words) and "%" not in words} == set()
    # A session counts its calls with a warning as the statistics do.
    in_sessions = Session.objects.aggregate(Sum("warned_count"), Sum("blocked_count"))
    in_statistics = CallCount.objects.aggregate(Sum("warned"), Sum("blocked"))
    assert [*in_sessions.values()] == [*in_statistics.values()]
    assert in_sessions["warned_count__sum"]


def test_the_checked_calls_of_a_tool_are_those_of_the_sessions_that_it_leads_to(world):
    for number in (100, 101):  # so that its last tool is not bash
        ask(world.project, "more-0", number, tool="grep", agent="coder", arguments=f'{{"n": {number}}}')
    count_calls()
    page = world.client.get(f"{world.base}/insights?by=tool").content.decode()
    row = page.partition("Group by")[2].partition("<span>bash</span>")[2].partition("</tr>")[0]
    cell = r'<a class="link" href="([^"]+)" title="([^"]+)">([\d,]+)</a>'
    url, title, checks = re.search(cell, row).groups()
    assert title == "2 sessions"
    assert rows_of(world, url) == 2
    assert rows_of(world, url.replace("tool%3Abash", "-tool%3Abash")) == Session.objects.count() - 2
    assert rows_of(world, url.replace("tool%3Abash", "tool%3Aba*")) == 2
    with speaking() as wsgi_client:
        api = Api(wsgi_client, make_key(world.project))
        listed = [one["session"] for one in api.get("/sessions", tool="bash").json()["items"]]
        assert sorted(listed) == ["more-0", "more-2"]
        tools = {name: api.get(f"/sessions/{name}").json()["tools"] for name in listed}
    of_bash = [tool for name in listed for tool in tools[name] if tool["tool"] == "bash"]
    assert sum(tool["calls"] for tool in of_bash) == int(checks)
    assert sum(tool["blocked"] for tool in of_bash) > 0
    assert {tool["tool"] for tool in tools["more-0"]} == {"bash", "grep"}
    shown = world.client.get(f"{world.base}/sessions/more-0").content.decode()
    facts = " ".join(re.sub("<.*?>", " ", shown.partition("<dt>Tools</dt>")[2].partition("</dd>")[0]).split())
    assert facts == "bash 9, grep 2"


def test_numbers_of_loops_lead_to_their_rows(world):
    page = world.client.get(f"{world.base}/loops?q=").content.decode()
    links = re.findall(r'href="([^"]*/loops/history\?[^"]*)"\s*>([\d,]+)<', page)
    counts = [int(words) for url, words in links if "sort=session" not in url]
    assert counts == [rows_of(world, url) for url, _ in links if "sort=session" not in url]
    assert sum(counts) == Incident.objects.count()
    loop = Incident.objects.filter(agent="coder").first().loop
    page = world.client.get(f"{world.base}/loops/{loop.public_id}").content.decode()
    # A loop of one run has a link without a number.
    runs = r"(?:All\s+)?([\d,]+)(?:\s+runs in order of time)?|Show it in the history"
    links = re.findall(rf'href="([^"]*/loops/history\?[^"]*)"\s*>\s*(?:{runs})\s*<', page)
    assert len(links) >= 2
    for url, words in ((url, words or "1") for url, words in links):
        assert rows_of(world, url) == int(words), url
    shares = re.findall(r'href="([^"]*/loops/history\?[^"]*)"\s*>\s*(\d+)\s?%<', page)
    assert len(shares) >= 3
    number = loop.incidents.count()
    for url, share in shares:
        assert round(100 * rows_of(world, url) / number) == int(share), url


@pytest.mark.parametrize(
    ("span", "length"), [("1h", 300), ("24h", 3600), ("30d", 86_400), ("365d", 7 * 86_400)]
)
def test_bars_lead_to_the_loops_of_their_time(world, span, length):
    page = world.client.get(f"{world.base}/insights?board=rate&range={span}").content.decode()
    bars = re.findall(
        r'<a href="([^"]+)" aria-label="[^":]+(?::\d\d)?: ([\d,]+)', page.partition('class="plot"')[2]
    )
    assert bars
    for url, count in bars:
        assert rows_of(world, url) == int(count.replace(",", "")), url
        start, end = parse_qs(unescape(url).partition("?")[2])["range"][0].split("/")
        assert 0 < (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() <= length
    loops = Incident.objects.exclude(label="false_alarm").count()
    assert sum(int(count) for _, count in bars) == loops


def test_of_many_groups_the_first_are_shown_and_a_link_shows_more(world):
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    CallCount.objects.bulk_create(
        CallCount(project=world.project, hour=hour, tool=f"tool_{number:02}", backend="", model="", checks=1)
        for number in range(30)
    )

    def rows(address):
        shown = world.client.get(address).content.decode()
        return shown, len(set(re.findall(r"tool_\d\d", shown)))

    shown, count = rows(f"{world.base}/insights?by=tool&range=24h&q=tool:tool_*")
    assert (count, "The first 25 of 30 rows." in " ".join(shown.split())) == (25, True)
    address = unescape(re.search(r'href="([^"]+groups=more[^"]*)"', shown)[1])
    shown, count = rows(address)
    assert (count, "The first" in shown) == (30, False)
