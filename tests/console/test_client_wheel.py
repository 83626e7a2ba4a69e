"""The wheel of the Python client, offered on the Connect page."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from detection.models import Role
from tests.support.projects import make_member, make_project

NAME = "loopguard_client-1.2.3-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path, settings):
    settings.CLIENT_WHEEL = tmp_path / NAME
    settings.CLIENT_WHEEL.write_bytes(b"PK wheel")
    return settings.CLIENT_WHEEL


@pytest.mark.django_db
def test_pip_gets_the_wheel_without_signing_in(client, wheel):
    response = client.get(f"/client/{NAME}")
    assert response.status_code == 200
    assert b"".join(response.streaming_content) == b"PK wheel"
    assert NAME in response["Content-Disposition"]


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["loopguard_client-9.9.9-py3-none-any.whl", "..%2Fsettings.py", "x"])
def test_nothing_else_is_offered(client, wheel, name):
    assert client.get(f"/client/{name}").status_code == 404


@pytest.mark.django_db
def test_a_server_without_a_wheel_offers_none(client, settings):
    settings.CLIENT_WHEEL = None
    assert client.get(f"/client/{NAME}").status_code == 404


@pytest.mark.django_db
def test_the_connect_page_names_the_command(client, wheel, settings):
    project = make_project()
    client.force_login(make_member(project, Role.VIEWER))
    page = html.unescape(client.get(f"/p/{project.slug}/connect/guides/python").content.decode())
    assert f"pip install {settings.PUBLIC_URL}/client/{NAME}" in page
    settings.CLIENT_WHEEL = None
    page = client.get(f"/p/{project.slug}/connect/guides/python").content.decode()
    folder = re.search(r"pip install (/\S+/clients/python)\b", html.unescape(page))[1]  # works in any folder
    assert (Path(folder) / "pyproject.toml").is_file()
