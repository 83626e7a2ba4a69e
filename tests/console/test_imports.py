"""The Imports page: uploads through the form, progress, summaries, errors and cancelling."""

from io import BytesIO
from typing import Any

import pytest
from django.test import Client

from detection.models import Incident, Recalculation, Role, Session, TranscriptImport
from detection.services.exceptions import exceptions
from detection.services.gateway import repricing
from detection.services.ingestion import import_files, import_worker
from tests.console.scenes import run_address, text
from tests.support.projects import make_member, make_project
from tests.support.transcripts import claude_code, lines

pytestmark = pytest.mark.django_db
LOOP = lines(claude_code(["make test"] * 8))


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path / "imports")
    return tmp_path / "imports"


@pytest.fixture
def project(db):
    return make_project("support")


@pytest.fixture
def operator(project):
    client = Client()
    client.force_login(make_member(project, Role.OPERATOR))
    return client


def file(content=LOOP, name="run.jsonl"):
    made = BytesIO(content)
    made.name = name
    return made


def post(client, project, *files, **form):
    form = {"kind": "claude-code", "files": files} | form
    return client.post(f"/p/{project.slug}/connect/imports", form)


def upload(client, project, *files, **form):
    answer = post(client, project, *(files or [file()]), **form)
    assert answer.status_code == 302, text(answer)
    return answer["Location"]


def work():
    import_worker.run_waiting(lambda: False)


def test_an_upload_ends_in_a_summary_at_its_own_address(operator, project, folder):
    url = upload(operator, project, usd_input="3", usd_output="15")
    assert "Waiting for a worker" in text(operator.get(url))
    work()
    shown = text(operator.get(url))
    assert "Finished" in shown
    assert "8 calls" in shown
    assert "$0.0" in shown
    link = operator.get(url).content.decode().partition(f'href="/p/{project.slug}/incidents/')[2]
    assert (
        operator.get(f"/p/{project.slug}/incidents/{link.partition(chr(34))[0]}", follow=True).status_code
        == 200
    )
    assert "run.jsonl" in text(operator.get(f"/p/{project.slug}/connect/imports"))
    assert list(folder.iterdir()) == []


def test_the_form_tags_the_sessions(operator, project):
    upload(operator, project, tags="nightly, team-a")
    work()
    assert Session.objects.get().tags == ["nightly", "team-a"]
    answer = post(operator, project, file(), tags="x" * 65)
    assert answer.status_code == 422
    assert "1 to 64 characters" in text(answer)


def test_the_open_part_refreshes_itself_and_the_ended_one_does_not(operator, project):
    url = upload(operator, project)
    part = operator.get(url, headers={"HX-Request": "true"}).content.decode()
    assert 'data-refresh-on="import"' in part
    assert "<html" not in part
    work()
    assert "hx-get" not in operator.get(url, headers={"HX-Request": "true"}).content.decode()


def test_a_file_of_another_kind_is_explained_on_the_page(operator, project):
    url = upload(operator, project, kind="trace")
    work()
    shown = text(operator.get(url))
    assert "run.jsonl, line 1: not a call of a trace" in shown
    assert "run.jsonl looks like claude-code" in shown
    assert "Nothing was stored" in shown


@pytest.mark.parametrize(
    ("contents", "form", "words"),
    [
        ([], {}, "must contain at least one file"),
        ([b""], {}, "run.jsonl is empty"),
        ([b"x"], {"kind": "csv"}, "kind must be one of"),
        ([b"x"], {"usd_input": "three"}, "Prices must be numbers"),
        ([b"x"], {"usd_input": "-1"}, "Prices must be between"),
        ([b"x" * 3000], {}, "An upload can be at most 0 MB"),
        ([b"x"] * 4, {}, "at most 3 files"),
    ],
)
def test_a_form_with_an_error_is_shown_again_with_it(
    operator, project, folder, monkeypatch, contents, form, words
):
    monkeypatch.setattr(import_files, "MAX_UPLOAD_BYTES", 2000)
    monkeypatch.setattr(import_files, "MAX_FILES", 3)
    answer = post(operator, project, *map(file, contents), **form)
    assert answer.status_code == (413 if "MB" in words else 422)
    assert words in text(answer)
    assert TranscriptImport.objects.count() == 0
    assert not folder.exists() or list(folder.iterdir()) == []


def test_without_space_the_upload_is_rejected_before_it_is_written(operator, project, settings, folder):
    settings.MIN_FREE_SHARE, settings.MIN_FREE_BYTES = 1.0, 2**60
    answer = post(operator, project, file())
    assert answer.status_code == 503
    assert "nearly full" in text(answer)
    assert list(folder.iterdir()) == []


def test_files_in_other_forms_are_never_written(operator, project, folder):
    operator.post(f"/p/{project.slug}/session/change", {"all": "no", "file": file()})
    assert not folder.exists()


def test_an_import_can_be_cancelled(operator, project, django_capture_on_commit_callbacks):
    url = upload(operator, project)
    with django_capture_on_commit_callbacks(execute=True):
        answer = operator.post(f"{url}/cancel", follow=True)
    assert "Cancelled by" in text(answer)
    work()
    assert Session.objects.count() == 0
    assert operator.post(f"{url}/cancel", follow=True).status_code == 200
    assert operator.post(f"/p/{project.slug}/connect/imports/imp_none/cancel").status_code == 404


def test_the_page_of_an_empty_project_says_what_to_do(operator, project):
    shown = text(operator.get(f"/p/{project.slug}/connect/imports"))
    assert "No imports yet" in shown
    assert operator.get(f"/p/{project.slug}/connect/imports?cursor=x").status_code == 404
    assert operator.get(f"/p/{project.slug}/connect/imports/imp_none").status_code == 404


def test_before_a_large_body_is_read_the_front_asks_for_admission(operator, project, monkeypatch):
    url = f"/p/{project.slug}/connect/imports"
    assert operator.get(url, **{"loopguard.upload_bytes": 10**6}).status_code == 204
    assert operator.get(url, **{"loopguard.upload_bytes": 10**12}).status_code == 413
    large: dict[str, Any] = {"loopguard.upload_bytes": 10**6}
    viewer = Client()
    viewer.force_login(make_member(project, Role.VIEWER))
    assert viewer.get(url, **large).status_code == 403
    assert Client().get(url, **large).status_code == 302
    for _ in range(5):
        upload(operator, project)
    assert operator.get(url, **{"loopguard.upload_bytes": 10**6}).status_code == 409


def test_connect_shows_the_command_of_an_import_with_prices_and_data_folder(operator, project, settings):
    settings.PROGRAM = "LOOPGUARD_DATA=/srv/data python3 manage.py"
    shown = text(operator.get(f"/p/{project.slug}/connect/guides/imports"))
    command = (
        "import_transcripts claude-code ~/.claude/projects --usd-per-million-tokens 3 15 --project support"
    )
    assert f"LOOPGUARD_DATA=/srv/data python3 manage.py {command}" in shown


def import_cycle(operator, project, *then):
    """Import a cycle of two tools that ends before the session; other detectors find its calls, too."""
    calls = ["cat tax.py", "make test"] * 5 + list(then or (f"cat {n}.py" for n in range(3)))
    content = lines(claude_code(calls)).replace(b"2 failed", b"KeyError: 'GB' in tests/test_tax.py")
    content = content.replace(b'"Bash", "input": {"command": "cat', b'"Read", "input": {"path": "')
    upload(operator, project, file(content))
    work()


def test_incidents_say_which_arguments_their_results_had_and_why_nobody_reacted(operator, project):
    """Of a cycle, the identical calls of one tool are found too, after the cycle was warned about."""
    import_cycle(operator, project)
    incident = Incident.objects.get()
    found = {one["kind"]: one["decision"] for one in incident.findings.values()}
    assert (found["cycle"], found["repeat"]) == ("warn", "allow")
    shown = text(operator.get(f"/p/{project.slug}/incidents/{incident.public_id}", follow=True))
    assert " acted " in shown.partition("Found by")[2]

    upload(operator, project, file(lines(claude_code([f"make part{n}" for n in range(8)], "77aa"))))
    work()
    incident = Incident.objects.get(kind="outcome", session_name="77aa")
    shown = text(operator.get(f"/p/{project.slug}/incidents/{incident.public_id}", follow=True))
    assert "with different arguments" in shown
    assert "Its run was imported. With the guard, it would have been warned" in shown


def test_not_a_loop_and_its_exception_cover_all_detectors_that_found_an_ended_loop(operator, project):
    import_cycle(operator, project)
    cycle = Incident.objects.get()
    others = cycle.findings_by_weight[1:]
    assert not Incident.objects.filter(ended_at=None).exists()
    page, act = run_address(cycle), f"/p/{project.slug}/loops/act"
    form = {"ids": cycle.loop.public_id, "run": cycle.public_id, "next": page}
    assert others
    operator.post(act, form | {"action": "fine", "reason": "poll"})
    assert "This is fine by" in text(operator.get(page))
    assert "Polling: it waits for a state to change." in text(operator.get(page))
    assert {one.label for one in Incident.objects.all()} == {"false_alarm"}
    operator.post(act, form | {"action": "undo"})
    assert {one.label for one in Incident.objects.all()} == {""}
    raised = next(one for one in exceptions.options(cycle) if one.id == "model:raise")
    names = {"cycle_min_laps", "outcome_max_results"}
    assert names <= set(raised.change.values)
    assert raised.change.values["outcome_max_results"] > max(one["count"] for one in others)
    operator.force_login(make_member(project, Role.ADMIN))
    shown = text(operator.get(f"/p/{project.slug}/loops/{cycle.loop.public_id}/fine?run={cycle.public_id}"))
    assert "which has ended" in shown
    operator.post(act, form | {"action": "fine", "where": "model", "reason": "other", "note": "a test"})
    assert "Raise the limit to" in exceptions.current(cycle).note


def test_the_activity_of_an_imported_incident_has_the_times_of_its_run(operator, project):
    upload(operator, project)
    work()
    incident = Incident.objects.get()
    assert {entry.at.date().isoformat() for entry in incident.activity.all()} == {"2026-03-01"}
    shown = text(operator.get(f"/p/{project.slug}/incidents/{incident.public_id}", follow=True))
    assert "The guard would have reacted" in shown
    assert "the session ended in the loop" in shown
    assert "Set up 0 of 6" in text(operator.get(f"/p/{project.slug}/connect"))
    assert "Stop…" not in text(operator.get(f"/p/{project.slug}/sessions/{incident.session_name}"))


def test_a_session_that_leaves_one_loop_for_another_one_says_so(operator, project):
    commands = ["make test"] * 5 + ["cat log.txt"] * 4
    upload(operator, project, file(lines(claude_code(commands))))
    work()
    first, last = Incident.objects.filter(kind="repeat").order_by("first_seq")
    shown = [
        text(operator.get(f"/p/{project.slug}/incidents/{one.public_id}", follow=True))
        for one in (first, last)
    ]
    assert "The session ended in another loop Repeated call: Bash" in shown[0]
    assert "The session ended in the loop" in shown[1]


def test_a_session_that_ends_in_a_loop_says_so_and_shows_what_each_detector_found(operator, project):
    import_cycle(operator, project, "cat 0.py", "make test", "make test")
    cycle = Incident.objects.get()
    shown = text(operator.get(f"/p/{project.slug}/incidents/{cycle.public_id}", follow=True))
    for one in cycle.findings_by_weight:
        assert f"{one['count']}, limit {one['limit']}, to call {one['last_call_number']}" in shown
    assert "The session ended in the loop" in shown


def test_an_exception_for_a_loop_raises_no_limit_of_its_run(operator, project):
    import_cycle(operator, project)
    cycle = Incident.objects.get(kind="cycle")
    budget = Incident.objects.get(pk=cycle.pk)
    budget.pk, budget.public_id, budget.kind, budget.calls_digest = None, "inc_budget", "budget", "a budget"
    budget.findings = {}
    budget.count, budget.limit, budget.evidence = 10, 10, {"detail": {"unit": "calls"}}
    budget.policy = {"budget_max_calls": {"value": 10}}
    budget.save()
    for one, others in ((cycle, ("budget_",)), (budget, ("cycle_", "outcome_"))):
        raised = next(option for option in exceptions.options(one) if option.id == "model:raise")
        assert not [name for name in raised.change.values if name.startswith(others)]


def test_an_exception_covers_all_findings_of_a_detector(operator, project):
    import_cycle(operator, project, "cat 0.py", "make test", "make test")
    cycle = Incident.objects.get()
    counts = [one["count"] for one in cycle.findings.values() if one["kind"] == "repeat"]
    assert min(counts) < max(counts)
    raised = next(option for option in exceptions.options(cycle) if option.id == "model:raise")
    names = {"max_repeats", "scattered_repeats", "scattered_run_repeats"}
    assert names <= set(raised.change.values)
    assert all(raised.change.values[name] > max(counts) for name in names)


def test_the_prices_page_says_how_far_imported_calls_follow_a_price(project):
    admin = Client()
    admin.force_login(make_member(project, Role.ADMIN))
    page, form = "/p/support/gateway/prices", {"model": "claude-*", "input_usd": "10", "output_usd": "20"}
    post(admin, project, file(), kind="claude-code")
    import_worker.run_waiting(lambda: False)
    assert "Imported sessions recalculated" not in text(admin.get(page))
    saved = text(admin.post(f"{page}/save", form, follow=True))
    assert "and imported calls are recalculated." in saved
    while repricing.recalculate_waiting():
        pass
    assert "1 of 1 changed." in text(admin.get(page))
    loop = Incident.objects.get(kind="repeat")
    shown = text(admin.get(f"/p/support/loops/{loop.loop.public_id}"))
    assert loop.cost_usd > 0
    assert f"${loop.cost_usd:.2f}" in shown
    Recalculation.objects.update(finished_at=None, done_sessions=0)
    assert "Recalculating imported sessions: 0 of 1." in text(admin.get(page))
