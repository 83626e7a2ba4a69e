"""The Suggestions page: what labels speak for, accepted, rejected, tried and undone by people."""

from detection.models import Role, Suggestion, ToolOverride
from detection.services.learning.suggestions import learn
from tests.support.alerts import make_incident
from tests.support.projects import make_member


def polls(world, times=3):
    for _ in range(times):
        make_incident(world.project, tool="poller", label="false_alarm", label_reason="poll", calls_blocked=1)


def text(answer):
    return " ".join(answer.content.decode().split())


def act(world, action, **given):
    form = {"id": given.pop("id", ""), "action": action, **given}
    return world.client.post(f"{world.base}/policies/suggestions/act", form, follow=True)


def test_the_empty_page_tells_how_many_labels_are_missing(world):
    page = f"{world.base}/policies"
    assert "No label of the last 90 days counts towards a suggestion yet." in text(world.client.get(page))
    polls(world, 2)
    shown = text(world.client.get(page))
    assert "2 loops of the last 90 days are labelled." in shown
    assert "2 labelled, 3 more needed" in shown
    assert f'href="{page}#suggestions"' in text(world.client.get(f"{world.base}/loops"))


def test_a_suggestion_is_accepted_and_undone(world):
    polls(world)
    one = learn(world.project).suggestions[0]
    shown = text(world.client.get(f"{world.base}/policies"))
    assert "Treat poller as polling" in shown
    assert "3 of 3 labelled incidents look like polling." in shown
    assert "range=90d" in shown
    accepted = text(act(world, "accept", id=one.id, note="Right.", expires="7d"))
    assert "Suggestion accepted. It takes effect on the next call." in accepted
    rule = ToolOverride.objects.get(project=world.project, pattern="poller")
    assert (rule.pattern, rule.tool_class, rule.expires_at is not None) == ("poller", "poll", True)
    assert "decided already" in text(act(world, "accept", id=one.id))
    listed = text(world.client.get(f"{world.base}/policies"))
    assert f"Accepted by {world.user.get_username()}" in listed
    assert "Decision undone." in text(act(world, "undo", id=one.id, state="accepted"))
    assert not ToolOverride.objects.filter(project=world.project, pattern="poller").exists()


def test_a_rejected_suggestion_is_listed_as_such_and_an_operator_may_only_try(world, client):
    polls(world)
    one = learn(world.project).suggestions[0]
    operator = make_member(world.project, Role.OPERATOR)
    client.force_login(operator)
    form = {"id": one.id, "action": "reject"}
    assert client.post(f"{world.base}/policies/suggestions/act", form).status_code == 403
    shown = text(client.get(f"{world.base}/policies"))
    assert ("Try on history" in shown, "Accept<" in shown) == (True, False)
    tried = client.post(f"{world.base}/policies/suggestions/try", {"id": one.id})
    assert "/policies/what-ifs/wif_" in tried["Location"]
    assert "last 7 days" in text(client.get(f"{world.base}/policies"))
    assert "It will not be suggested again." in text(act(world, "reject", id=one.id, note="It changes."))
    assert "It changes." in text(world.client.get(f"{world.base}/policies"))
    assert Suggestion.objects.get().decision == "rejected"
    assert "no longer support this suggestion" in text(act(world, "accept", id="sug_0"))
