"""What several people do to the members of a project at the same time."""

import pytest

from detection.models import Membership, Role
from detection.services.audit import Actor
from detection.services.errors import Conflict, NotFound
from detection.services.projects import invitations, members
from tests.support.projects import make_member, make_project
from tests.support.threads import in_thread

pytestmark = pytest.mark.django_db(transaction=True)


def outcome(thread):
    try:
        return type(thread.result()).__name__
    except (Conflict, NotFound) as error:
        return error.code


def test_two_admins_cannot_leave_at_the_same_time_and_a_link_lets_one_person_in():
    project = make_project()
    admins = [make_member(project, Role.ADMIN) for _ in range(2)]
    leaving = [
        in_thread(members.remove_member, project.pk, one.pk, Actor(one.get_username(), one.pk))
        for one in admins
    ]
    assert sorted(map(outcome, leaving)) == ["Membership", "last_admin"]
    _, token = invitations.create_invitation(project.pk, Actor("ana"), role="viewer", days=1)
    strangers = [make_member(make_project()) for _ in range(4)]
    joining = [
        in_thread(invitations.accept_invitation, token, Actor(one.get_username(), one.pk))
        for one in strangers
    ]
    assert sorted(map(outcome, joining)) == ["Membership", *["not_found"] * 3]
    assert Membership.objects.filter(project=project).count() == 2
