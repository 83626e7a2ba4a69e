"""Actions on all rows that match a filter: as of when the list was seen, in steps, with undo for exactly what was done."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import BulkAction, Incident, Loop, LoopActivity, ToolOverride
from detection.services.exceptions import fine
from detection.services.incidents import bulk_actions, loop_changes
from tests.console.scenes import loop, make_world, text
from tests.support.alerts import make_incident
from tests.support.shared_rows import shared_rows

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def shared_world(django_db_setup, django_db_blocker):
    with shared_rows(django_db_blocker):
        world = make_world()
        Incident.objects.all().delete()
        for number in range(60):
            one = f"c-{number}"
            row = Loop.objects.create(project=world.project, key=one, kind="cycle", tool="bash")
            make_incident(world.project, kind="cycle", calls_digest=one, tool="bash", status="open", loop=row)
        row = Loop.objects.create(project=world.project, key="other", kind="repeat", tool="bash")
        make_incident(world.project, calls_digest="other", tool="bash", status="open", loop=row)
        yield world


@pytest.fixture(autouse=True)
def long_enough(monkeypatch):
    monkeypatch.setattr(bulk_actions, "IN_REQUEST_SECONDS", 60.0)
    monkeypatch.setattr(bulk_actions, "IN_WORKER_SECONDS", 60.0)


def labels():
    return dict(Loop.objects.filter(incidents__isnull=False).order_by("pk").values_list("key", "label"))


def all_that_match(world, query="q=detector:cycle", action="fine", **more):
    """Apply an action to all rows of a list as its page offers it, and return the page that answers, without its addresses."""
    address = f"{world.base}/loops?{query}"
    up_to = re.search(r'name="up_to" value="(\d+)"', world.client.get(address).content.decode())[1]
    form = {"matching": "yes", "filter": query, "up_to": up_to, "action": action, "next": address, **more}
    return world.client.post(f"{world.base}/loops/act", form, follow=True)


def undo(world, page):
    found = re.search(r'name="ids"\s+value="(bulk_\w+)"', page.content.decode())[1]
    form = {"action": "undo", "ids": found, "next": f"{world.base}/loops?q="}
    return world.client.post(f"{world.base}/loops/act", form, follow=True)


def sweep():
    while loop_changes.carry_out_waiting():
        pass


def test_all_that_match_become_fine_and_are_restored_by_undo(world):
    one = Loop.objects.get(key="c-7")
    assert "all 60 that match" in text(world.client.get(f"{world.base}/loops?q=detector:cycle"))
    done = all_that_match(world)
    assert "60 loops marked as fine." in text(done)
    labelled = {f"c-{number}": "false_alarm" for number in range(60)}
    assert labels() == labelled | {"other": ""}
    world.client.post(f"{world.base}/loops/act", {"action": "confirm", "ids": one.public_id})
    again = undo(world, done)
    assert "59 loops restored." in text(again)  # what was changed since stays
    others = {"c-7": "true_loop", "other": ""}
    assert labels() == {f"c-{number}": "" for number in range(60)} | others
    assert "You have no change to undo." in text(undo(world, done))
    stranger = world.client.post(
        f"{world.base}/loops/act", {"action": "undo", "ids": "bulk_none"}, follow=True
    )
    assert "You have no change to undo." in text(stranger)


@pytest.mark.parametrize("is_matching", [True, False])
def test_rows_that_an_action_leaves_as_they_are_do_not_count(world, is_matching):
    already = Loop.objects.filter(key__in=("c-1", "c-2"))
    already.update(label="false_alarm")
    Incident.objects.filter(loop__in=already).update(label="false_alarm")
    if is_matching:
        done, number = all_that_match(world), 60
    else:
        ids = Loop.objects.filter(key__in=("c-1", "c-2", "c-3", "c-4", "c-5")).order_by("pk")
        form = {"action": "fine", "ids": [*ids.values_list("public_id", flat=True)]}
        done, number = world.client.post(f"{world.base}/loops/act", form, follow=True), 5
    assert f"{number - 2} loops marked as fine, 2 unchanged." in text(done)
    found = re.search(
        r'name="ids"\s+value="([^"]+)"\s*>', done.content.decode().partition('class="toast')[2]
    )[1]
    again = world.client.post(f"{world.base}/loops/act", {"action": "undo", "ids": found}, follow=True)
    assert f"{number - 2} loops restored." in text(again)
    assert "could not be changed" not in text(again)
    assert already.filter(label="false_alarm").count() == 2


def test_what_is_fine_is_asked_once_for_all_that_match_and_saved_for_each(world):
    query = "q=tool:tool_*"
    for number in range(3):
        loop(world.project, f"own-{number}", tool=f"tool_{number:02}", calls=4)
    found = [*Loop.objects.filter(tool__startswith="tool_").order_by("pk")]
    ids = [one.public_id for one in found]
    asked = world.client.post(f"{world.base}/loops/fine", {"ids": ids, "next": f"{world.base}/loops?{query}"})
    assert f"{len(ids)} loops: this is fine for" in text(asked)
    assert f"{len(ids)} exceptions" in text(asked)
    hidden = re.findall(r'type="hidden" name="ids" value="(\w+)"', asked.content.decode())
    assert hidden == ids
    form = {"ids": ids, "action": "fine", "where": "tool", "reason": "poll", "expires": "7d"}
    done = world.client.post(f"{world.base}/loops/act", form, follow=True)
    assert f"{len(ids)} loops marked as fine." in text(done)
    rules = ToolOverride.objects.filter(project=world.project, pattern__startswith="tool_")
    assert [(one.tool_class, bool(one.expires_at)) for one in rules] == [("poll", True)] * 3
    undone = world.client.post(f"{world.base}/loops/act", {"action": "undo", "ids": ids}, follow=True)
    assert f"{len(ids)} loops restored." in text(undone)
    assert not rules.all().exists()
    # More than are compared: the form keeps the filter, and the action applies to all that match.
    given = {"matching": "yes", "filter": "q=detector:cycle", "up_to": Loop.objects.latest("pk").pk}
    asked = world.client.post(f"{world.base}/loops/fine", given)
    kept = dict(
        re.findall(r'type="hidden" name="(matching|filter|up_to)" value="([^"]*)"', asked.content.decode())
    )
    assert kept == {name: str(value) for name, value in given.items()}
    assert "60 loops: this is fine for" in text(asked)
    assert "No loop was selected." in text(world.client.post(f"{world.base}/loops/fine", {}, follow=True))


@pytest.mark.parametrize("number", [3, 25])
def test_loops_that_are_assigned_or_closed_already_are_unchanged(world, number):
    Incident.objects.all().delete()
    for one in range(number):
        loop(world.project, f"run-{one}", tool=f"tool-{one}", calls=4)
    Incident.objects.filter(session_name="run-0").update(status="ended", ended_at=timezone.now())
    ids = [*Loop.objects.filter(incidents__isnull=False).values_list("public_id", flat=True)]
    for action, words in (("assign:me", "assigned"), ("done", "closed")):
        form = {"action": action, "ids": ids}
        said = text(world.client.post(f"{world.base}/loops/act", form, follow=True))
        assert f"{number} loops {words}." in said
        again = text(world.client.post(f"{world.base}/loops/act", form, follow=True))
        assert f"0 loops {words}, {number} unchanged." in again


def test_a_filter_of_any_length_is_the_whole_filter(world):
    all_that_match(world, query=f"columns={'a' * 5000}&q=detector:cycle")
    assert labels()["other"] == ""


def test_a_worker_continues_with_progress_and_undo_and_refuses_a_second_submission(world, monkeypatch):
    monkeypatch.setattr(bulk_actions, "IN_REQUEST_SECONDS", 0.0)
    first = all_that_match(world)
    assert "1 of 60 loops marked as fine." in text(first)
    assert '<progress max="60" value="1"' in re.sub(r"\s+", " ", first.content.decode())
    assert "Another action on these rows is still running." in text(all_that_match(world))
    late = Loop.objects.create(project=world.project, key="late", kind="cycle", tool="bash")
    make_incident(world.project, kind="cycle", calls_digest="late", tool="bash", status="open", loop=late)
    BulkAction.objects.update(created_at=timezone.now() - timedelta(seconds=9))
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 1
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 0
    shown = world.client.get(f"{world.base}/loops?q=")
    assert "Done 60 of 60 loops marked as fine." in text(shown)
    assert labels()["late"] == ""
    assert LoopActivity.objects.filter(action="fine").count() == 60
    assert "restored" in text(undo(world, shown))
    # An hour later, the undo that was requested in time still restores all.
    LoopActivity.objects.update(at=timezone.now() - timedelta(hours=1))
    BulkAction.objects.update(claimed_until=None)
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 1
    assert set(labels().values()) == {""}
    assert BulkAction.objects.get(action="undo").failures == {}


def test_a_loop_that_cannot_be_changed_keeps_no_action_running_for_ever(world, monkeypatch):
    monkeypatch.setattr(bulk_actions, "IN_REQUEST_SECONDS", 0.0)
    all_that_match(world)
    broken = Loop.objects.get(pk=BulkAction.objects.get().targets[-1]).public_id

    def failing(project_id, public_id, actor, **about):
        if public_id == broken:
            raise ValueError(public_id)
        return fine.ACTIONS["fine"](project_id, public_id, actor, **about)

    verbs = {**fine.ACTIONS, "fine": failing}
    while bulk_actions.carry_out_waiting(verbs):
        pass
    row = BulkAction.objects.get()
    assert row.finished_at is not None
    assert row.failures == {"internal_error": 1}
    assert row.changed == row.total - 1
    assert "Another action" not in text(all_that_match(world, action="later:1h"))


def test_an_undo_ends_the_action_that_a_worker_carries_out(world, monkeypatch):
    monkeypatch.setattr(bulk_actions, "IN_REQUEST_SECONDS", 0.0)
    running = all_that_match(world)
    BulkAction.objects.update(claimed_until=timezone.now() + timedelta(minutes=1))  # a worker has begun
    undo(world, running)
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 1  # waits for that worker
    assert BulkAction.objects.get(action="undo").done == 0
    BulkAction.objects.update(claimed_until=None)
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 1
    assert BulkAction.objects.get(action="undo").failures == {}  # rows that it had not reached are none
    assert set(labels().values()) == {""}
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 0


def test_a_batch_that_was_not_counted_is_not_carried_out_again(world, monkeypatch):
    monkeypatch.setattr(bulk_actions, "IN_REQUEST_SECONDS", 0.0)
    all_that_match(world, action="later:1h")
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 1
    # As after a crash within the last batch.
    BulkAction.objects.update(done=10, changed=10, finished_at=None, claimed_until=None)
    assert bulk_actions.carry_out_waiting(fine.ACTIONS) == 1
    assert BulkAction.objects.get().changed == 60
    assert LoopActivity.objects.filter(action="later").count() == 60


def test_undo_leaves_what_the_person_has_changed_of_a_loop_since(world):
    for number in range(3):
        loop(world.project, f"own-{number}", tool=f"tool_{number:02}", calls=4)
    query = "q=is:open tool:tool_*"
    keys = [*Loop.objects.filter(tool__startswith="tool_").order_by("pk")]
    done = all_that_match(world, query, "fine")
    since = keys[0]
    world.client.post(f"{world.base}/loops/act", {"action": "confirm", "ids": since.public_id})
    # The process that carried it out had not counted the last row when an undo ended it.
    BulkAction.objects.update(
        done=len(keys) - 1, finished_at=BulkAction.objects.get().created_at, claimed_until=None
    )
    page = text(undo(world, done))
    assert f"{len(keys) - 1} loops restored." in page
    assert [Loop.objects.get(pk=one.pk).label for one in keys] == ["true_loop"] + [""] * (len(keys) - 1)


def test_all_loops_that_match_are_closed_and_restored(world):
    for number in range(51):  # one more than a page has
        loop(world.project, f"own-{number}", tool=f"tool_{number:02}", calls=4)
    keys = Loop.objects.filter(tool__startswith="tool_").count()
    assert keys > 50
    assert f"all {keys} that match" in text(world.client.get(f"{world.base}/loops?q=is:open tool:tool_*"))
    done = all_that_match(world, "q=is:open tool:tool_*", "done")
    assert f"{keys} loops closed." in text(done)
    sweep()
    own = Incident.objects.filter(tool__startswith="tool_")
    assert set(own.values_list("status", flat=True)) == {"done"}
    assert set(Incident.objects.exclude(pk__in=own).values_list("status", flat=True)) == {"open"}
    # Only the time since its end counts: a worker may have changed the first row long before the last one.
    earlier = timezone.now() - timedelta(minutes=20)
    BulkAction.objects.update(created_at=earlier)
    LoopActivity.objects.update(at=earlier + timedelta(minutes=1))
    assert f"{keys} loops restored." in text(undo(world, done))
    sweep()
    assert not own.filter(status="done").exists()


def test_what_the_person_did_to_a_loop_before_the_action_reached_it_is_not_undone_with_it(world, monkeypatch):
    for number in range(3):
        loop(world.project, f"own-{number}", tool=f"tool_{number:02}", calls=4)
    monkeypatch.setattr(bulk_actions, "IN_REQUEST_SECONDS", 0.0)
    all_that_match(world, "q=is:open tool:tool_*", "fine")
    row = BulkAction.objects.get()
    assert row.done == 1
    last = Loop.objects.get(pk=row.targets[-1])
    form = {"action": "fine", "ids": last.public_id}
    world.client.post(f"{world.base}/loops/act", form)
    BulkAction.objects.update(created_at=timezone.now() - timedelta(seconds=9))
    while bulk_actions.carry_out_waiting(fine.ACTIONS):
        pass
    assert BulkAction.objects.get().changed == row.total - 1
    undo(world, world.client.get(f"{world.base}/loops?q="))
    while bulk_actions.carry_out_waiting(fine.ACTIONS):
        pass
    labelled = Loop.objects.filter(pk__in=row.targets).exclude(label="")
    assert [*labelled.values_list("pk", flat=True)] == [last.pk]
