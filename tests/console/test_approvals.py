"""The screens of approvals and message templates, through real requests."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import Approval, JudgeCall, Membership, MessageTemplate, Project, Role
from detection.services import keys
from detection.services.audit import SYSTEM
from detection.services.containments.containments import Wanted, contain
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.policies import overrides
from tests.console.scenes import run_address
from tests.support.projects import make_key, make_member, make_project

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def project(db):
    project = make_project("support")
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    return project


@pytest.fixture
def held(project):
    principal = keys.authenticate(make_key(project))
    for number in range(4):
        call = EventRecord(
            type="call",
            session=HOSTILE,
            call_id=f"c-{number}",
            tool=HOSTILE,
            arguments=f'{{"q": "{HOSTILE[2:]}"}}',
        )
        guard(principal, GuardRequest(session=HOSTILE, agent=HOSTILE, calls=(call,)))
    return Approval.objects.get()


@pytest.fixture
def as_member(client, project):
    def sign_in(role):
        client.force_login(make_member(project, role))
        return client

    return sign_in


def test_what_waits_is_shown_with_its_call_its_time_and_what_happens_otherwise(as_member, held):
    page = as_member(Role.OPERATOR).get("/p/support/held").content.decode()
    assert "the call is skipped and the run continues" in page
    assert "data-seconds-left=" in page
    assert page.count("&lt;script&gt;") >= 3
    assert f'href="{run_address(held.incident)}"' in page
    assert "/incidents/" not in page
    assert "<script>alert" not in page


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
def test_a_waiting_call_says_how_detection_is_turned_off_for_good(role, as_member, held):
    page = as_member(role).get("/p/support/held").content.decode()
    note = re.search(r'<p class="help">\s*(<b>Disable detection</b>.*?)</p>', page, re.DOTALL)
    assert (note is not None) == (role != Role.VIEWER)
    if note:
        text = " ".join(re.sub(r"<[^>]+>", "", note[1]).split())
        assert "ends with this session" in text
        assert "turn detection off for good, switch Detection off under Policies" in text
        assert ('href="/p/support/policies"' in note[1]) == (role == Role.ADMIN)
        assert ("requires the administrator role" in text) == (role != Role.ADMIN)


def test_the_page_explains_how_calls_are_held_until_one_was(as_member, project, request):
    person, page = as_member(Role.OPERATOR), f"/p/{project.slug}/held"
    assert "Reaction to repeats" in person.get(page).content.decode()
    held = request.getfixturevalue("held")
    person.post(f"/p/{project.slug}/approvals/decision", {"id": held.public_id, "choice": "allow_once"})
    shown = person.get(page).content.decode()
    assert "No call waits" in shown
    assert "Reaction to repeats" not in shown


def test_a_call_that_a_containment_holds_offers_only_what_can_be_decided(as_member, project):
    contain(project.pk, Wanted("tool", "deploy", "hold"), SYSTEM)
    call = EventRecord(type="call", session="s-1", call_id="c-1", tool="deploy", arguments="{}")
    guard(keys.authenticate(make_key(project)), GuardRequest(session="s-1", agent="ci", calls=(call,)))
    for path in ("held", "now"):
        page = as_member(Role.OPERATOR).get(f"/p/support/{path}").content.decode()
        offered = set(re.findall(r'name="choice"\s+value="(\w+)"', page))
        assert offered == {"skip", "allow_once", "stop"}, path
        assert 'name="remember"' not in page


def test_an_operator_answers_and_a_viewer_does_not(as_member, held):
    form = {"id": held.public_id, "choice": "raise", "raise_by": "3"}
    viewer = as_member(Role.VIEWER)
    assert "Deciding requires the operator role" in viewer.get("/p/support/held").content.decode()
    assert viewer.post("/p/support/approvals/decision", form).status_code == 403
    told = as_member(Role.OPERATOR).post("/p/support/approvals/decision", form, follow=True).content.decode()
    assert "raised the limit by 3" in told
    held.refresh_from_db()
    assert (held.choice, held.raise_by) == ("raise", 3)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"choice": "skip"},
        {"id": "apr_none", "choice": "skip"},
        {"choice": "raise", "raise_by": "²"},
        {"choice": "raise", "raise_by": "99999"},
    ],
)
def test_an_invalid_form_shows_an_error(form, as_member, held):
    told = as_member(Role.OPERATOR).post(
        "/p/support/approvals/decision",
        {"id": held.public_id, **form} if "id" not in form else form,
        follow=True,
    )
    assert told.status_code == 200
    held.refresh_from_db()
    assert held.is_open or held.choice == "skip"
    if "raise_by" in form:
        assert "Raise the limit by 1 to 10,000." in told.content.decode()


def test_a_held_call_is_answered_on_the_pages_of_the_person_too(as_member, project, held):
    client = as_member(Role.OPERATOR)
    card = f'data-held="{held.public_id}"'
    for path in ("/account", "/account/second-factor", "/preferences", "/projects"):
        page = client.get(path).content.decode()
        assert card in page, path
        assert 'href="/p/support/sessions"' in page, path
    Membership.objects.create(
        project=make_project("quiet"), user=client.get("/account").context["user"], role=Role.VIEWER
    )
    client.get("/p/quiet/")
    page = client.get("/account").content.decode()
    assert 'href="/p/quiet/sessions"' in page, "the project opened last"
    # It is announced with the name of its project, and not to those who have left that.
    assert re.search(rf"{card}\s+data-elsewhere", page)
    assert "<title>\n      (1)" in page
    Membership.objects.filter(project=project).delete()
    assert card not in client.get("/account").content.decode()
    Project.objects.update(archived_at=timezone.now())
    assert 'href="/p/quiet/sessions"' not in client.get("/account").content.decode()


def test_other_projects_do_not_exist(client, project, held):
    client.force_login(make_member(make_project("rivals"), Role.ADMIN))
    assert client.get("/p/support/held").status_code == 404
    assert (
        client.post("/p/support/approvals/decision", {"id": held.public_id, "choice": "skip"}).status_code
        == 404
    )
    told = client.post("/p/rivals/approvals/decision", {"id": held.public_id, "choice": "skip"}, follow=True)
    assert "Not found in this project" in told.content.decode()
    assert client.get("/p/support/policies/messages").status_code == 404


@pytest.mark.parametrize(
    ("choice", "outcome", "progress"),
    [("skip", "skipped", "active"), ("allow_once", "allowed", "allowed"), ("stop", "stopped", "active")],
)
def test_a_decided_hold_is_shown_with_its_outcome(choice, outcome, progress, as_member, held):
    member, incident = as_member(Role.OPERATOR), run_address(held.incident)
    assert "Waiting for a person" in member.get(incident).content.decode()
    assert "held</button>" in member.get("/p/support/loops/history").content.decode()
    member.post("/p/support/approvals/decision", {"id": held.public_id, "choice": choice})
    page = member.get(incident).content.decode()
    assert "Held calls and judge" in page
    assert f"held, then {outcome}" in page
    rows = " ".join(member.get("/p/support/loops/history?q=detector:repeat").content.decode().split())
    assert f"held, then {outcome}</button>" in rows
    assert (f">{progress}</span>" in rows) == (progress != "ended")


def test_templates_are_previewed_saved_and_deleted(as_member, project):
    admin = as_member(Role.ADMIN)
    form = {"rung": "stop", "shape": "openai", "text": "Stop $tool <b>now</b>."}
    tried = admin.post("/p/support/policies/messages", {**form, "action": "preview"}).content.decode()
    assert "Stop search_web &lt;b&gt;now&lt;/b&gt;." in tried
    assert not MessageTemplate.objects.exists()
    admin.post("/p/support/policies/messages", {**form, "action": "save"})
    assert MessageTemplate.objects.get().text == form["text"]
    admin.post("/p/support/policies/messages", {**form, "action": "reset"})
    assert not MessageTemplate.objects.exists()


def test_a_rejected_template_shows_the_reason_and_stays_in_the_form(as_member, project):
    form = {"rung": "stop", "shape": "", "text": "Look: $arguments", "action": "save"}
    refused = as_member(Role.ADMIN).post("/p/support/policies/messages", form)
    assert refused.status_code == 422
    assert "is not a placeholder" in refused.content.decode()
    assert "Look: $arguments" in refused.content.decode()
    assert as_member(Role.OPERATOR).post("/p/support/policies/messages", form).status_code == 403
    assert as_member(Role.VIEWER).get("/p/support/policies/messages").status_code == 200


def test_a_session_shows_that_it_waits_and_that_detection_is_off_and_takes_it_back(as_member, held):
    operator = as_member(Role.OPERATOR)
    address = "/p/support/session?" + urlencode({"name": HOSTILE})
    assert "A call waits for a decision" in operator.get(address).content.decode()
    operator.post("/p/support/approvals/decision", {"id": held.public_id, "choice": "disable"})
    assert "Enable detection" in operator.get(address).content.decode()
    form = {"name": HOSTILE, "action": "command", "text": "!/unset(tool-loop-detection)"}
    told = operator.post("/p/support/session/act", form, follow=True).content.decode()
    assert "Enable detection" not in told
    assert "tool-loop-detection is now true" in told


def test_a_ruling_is_labelled_on_its_incident(as_member, project, held):
    call = JudgeCall.objects.create(
        project=project,
        approval=held,
        incident=held.incident,
        calls_digest="a",
        session_id=held.session_id,
        outcome="accepted",
    )
    page, form = (
        run_address(held.incident),
        {"id": held.public_id, "incident": held.incident.public_id},
    )
    member = as_member(Role.OPERATOR)
    assert "Was this ruling right?" in member.get(page).content.decode()
    shown = member.post(
        "/p/support/approvals/ruling/label", {**form, "label": "wrong"}, follow=True
    ).content.decode()
    assert "Ruling labelled wrong." in shown
    assert "labelled wrong" in shown
    call.refresh_from_db()
    assert call.label == "wrong"
    assert (
        "Label removed."
        in member.post("/p/support/approvals/ruling/label", form, follow=True).content.decode()
    )
    viewer = as_member(Role.VIEWER)
    assert viewer.post("/p/support/approvals/ruling/label", {**form, "label": "right"}).status_code == 403
    assert "Was this ruling right?" not in viewer.get(page).content.decode()


def call(principal, session, tool, arguments, **more):
    one = EventRecord(
        type="call", session=session, call_id=f"c-{tool}-{arguments}"[:60], tool=tool, arguments=arguments
    )
    return guard(principal, GuardRequest(session=session, agent="finance", calls=(one,), **more))


def words(part):
    return " ".join(re.sub(r"<[^>]+>", " ", part).split())


def test_a_group_shows_what_differs_in_its_other_calls(as_member, project):
    principal = keys.authenticate(make_key(project))
    contain(project.pk, Wanted("agent", "finance", reaction="hold"), SYSTEM)
    for number, city in enumerate(("Oslo", "Rome", "Bern", "Kyiv", "Lima", "Rome")):
        call(principal, f"s-{number}", "book", f'{{"city": "{city}", "guests": 2}}')
    call(principal, "s-9", HOSTILE, "{}")
    page = as_member(Role.OPERATOR).get("/p/support/held").content.decode()
    group = page[page.index('class="burn held-group"') :].partition('class="one-by-one"')[0]
    assert "6 different calls. The oldest is above; in the others:" in words(group)
    changed = re.findall(r'<del class="old-value">(.*?)</del>\s*<ins class="new-value">(.*?)</ins>', group)
    has_other_tool = "&lt;script&gt;" in group.partition("in the others:")[2]
    assert len(changed) == (2 if has_other_tool else 3), group
    assert {old for old, _ in changed} == {"Oslo"}
    assert {new for _, new in changed} <= {"Rome", "Bern", "Kyiv", "Lima"}
    assert ">guests<" not in group, "it is the same in all of them"
    assert "And 2 more." in words(group)
    assert "<script>alert" not in page


def test_other_pages_say_of_how_many_calls_a_group_was(as_member, project):
    principal = keys.authenticate(make_key(project))
    contain(project.pk, Wanted("agent", "finance", reaction="hold"), SYSTEM)
    for number in range(3):
        call(principal, f"s-{number}", "book", "{}")
    person = as_member(Role.OPERATOR)
    (held,) = person.get("/p/support/attention").json()["held"]
    form = {"group": held["group"], "choice": "skip"}
    assert person.post("/p/support/approvals/group/decision", form).status_code == 302
    (closed,) = person.get(f"/p/support/attention?known={held['id']}").json()["closed"]
    assert re.fullmatch(r"Skipped by person-\d+: book in s-\d and 2 more\.", closed["words"]), closed


def test_equal_calls_of_a_group_show_no_difference(as_member, project):
    principal = keys.authenticate(make_key(project))
    contain(project.pk, Wanted("agent", "finance", reaction="hold"), SYSTEM)
    for number in range(3):
        call(principal, f"s-{number}", "book", '{"city": "Oslo"}')
    page = as_member(Role.OPERATOR).get("/p/support/held").content.decode()
    assert "different calls" not in page
    assert "old-value" not in page


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_spent_budget_is_answered_with_more_of_it_or_the_end(as_member, project, sessions):
    values = {
        "budget_enabled": True,
        "budget_max_rounds": 4,
        "budget_soft_rounds": False,
        "budget_ladder": "ask",
    }
    overrides.save_override(project.pk, PROJECT, values, SYSTEM)
    principal = keys.authenticate(make_key(project))
    for session in range(sessions):
        for number in range(4):
            call(principal, f"s-{session}", "read", f'{{"page": {number}}}')
    assert Approval.objects.filter(state="open").count() == sessions
    person = as_member(Role.OPERATOR)
    page = person.get("/p/support/held").content.decode()
    form = page[page.index('name="choice" value="raise"') :].partition("</form>")[0]
    assert words(form).startswith('name="choice" value="raise"> Grant rounds this many more'), words(form)
    assert 'class="btn primary" name="choice" value="skip"' not in page
    one = Approval.objects.order_by("pk").first()
    group = re.search(r'name="group" value="([^"]+)"', page)
    what = {"group": group[1]} if group and sessions > 1 else {"id": one.public_id}
    action = "group/decision" if sessions > 1 else "decision"
    done = person.post(f"/p/support/approvals/{action}", {**what, "choice": "raise", "raise_by": "7"})
    assert done.status_code == 302
    assert {*Approval.objects.values_list("choice", "raise_by")} == {("raise", 7)}
