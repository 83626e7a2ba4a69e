"""Routes of the project of the key."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpResponse
from ninja import Body, Router

from detection.api.auth import ADMIN_WITH_BODY, READ
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response
from detection.api.schemas.projects import (
    PackedSchema,
    ProjectRequestSchema,
    ProjectSchema,
    ReportedEventsSchema,
)
from detection.api.versions import CONDITIONAL, expected_version, with_version
from detection.models import Project
from detection.selectors.packed_events import packed_sum
from detection.selectors.reported_events import reported_events
from detection.selectors.row_fields import document_of
from detection.services.projects import projects

router = Router(tags=["project"])


def _response(project: Project) -> HttpResponse:
    packed = document_of(packed_sum(project.pk), PackedSchema)
    document = document_of(project, ProjectSchema, packed=packed)
    return with_version(json_response(document), projects.project_version(project))


@router.get("/project", auth=READ, response={200: ProjectSchema}, summary="Get the project")
def get_project(request: ApiRequest) -> HttpResponse:
    """Return the project of the key."""
    return _response(Project.objects.get(pk=request.principal.project_id))


@router.get(
    "/project/reported-events",
    auth=READ,
    response={200: ReportedEventsSchema},
    summary="Get the rate of reported events",
)
def get_reported_events(request: ApiRequest) -> HttpResponse:
    """Return how many events the project usually reports, from how many on it has a spike, and whether it has one."""
    project = Project.objects.get(pk=request.principal.project_id)
    return json_response(document_of(reported_events(project), ReportedEventsSchema))


@router.patch(
    "/project",
    auth=ADMIN_WITH_BODY,
    response={200: ProjectSchema},
    summary="Update the project",
    openapi_extra=CONDITIONAL,
)
def update_project(request: ApiRequest, body: Body[ProjectRequestSchema]) -> HttpResponse:
    """Change settings of the project, archive it, or restore it. A shorter retention deletes older sessions."""
    values = body.dict(exclude_none=True)
    is_archived = values.pop("is_archived", None)
    project_id, actor = request.principal.project_id, actor_of(request)
    with transaction.atomic():
        project = projects.update_project(project_id, actor, version=expected_version(request), **values)
        if is_archived is not None:
            project = projects.archive_project(project_id, actor, is_archived=is_archived)
    return _response(project)
