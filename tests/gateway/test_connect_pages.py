"""The Connect pages for base URLs: what they show runs as it is, against the gateway."""

import html
import os
import re
import shutil
import subprocess
import tomllib

import httpx
import pytest
from django.test import Client

from detection.console.integrations.base_urls import BASE_URL_GUIDES
from detection.models import ApiKey, GatewayBackend, GatewayToken, Session
from tests.console.scenes import text
from tests.support.model_answers import answered, call
from tests.support.programs import needs_curl
from tests.support.projects import make_member, make_project

from .conftest import World
from .test_litellm import CONFIGURATION

SDK_PYTHON = os.environ.get("LOOPGUARD_SDK_PYTHON", "")
"""Names a Python with the packages `openai` and `anthropic`."""

SHAPES = {"openai": "openai", "anthropic": "anthropic"}
SDK_CALLS = {
    "openai": 'print(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}]))',
    "anthropic": 'print(client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]))',
}


def snippets(page):
    found = re.findall(r'<pre[^>]*id="snippet-([a-z-]+)"[^>]*>(.*?)</pre>', page, re.DOTALL)
    return {name: html.unescape(one) for name, one in found}


@pytest.fixture
def console(world: World, settings):
    settings.LIVE_URL = world.url
    client = Client()
    client.force_login(make_member(world.project))
    return client


def shown(console, world, name, **posted):
    url = f"/p/{world.project.slug}/connect/base-url/{name}"
    page = console.post(url, posted) if posted else console.get(url)
    return page.content.decode()


def run(script, **env):
    done = subprocess.run(
        ["sh", "-ec", script],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_curl
@pytest.mark.parametrize("name", SHAPES)
def test_the_new_key_and_the_request_run_as_they_are_shown(world: World, console, name):
    world.model.script = lambda asked: answered(asked, SHAPES[name], "", [call()])
    page = shown(console, world, name, action="create_key")
    key = ApiKey.objects.get(name=BASE_URL_GUIDES[name].title)
    assert key.scopes == ["guard"]
    found = snippets(page)
    credentials = {"OPENAI_API_KEY": "sk-client", "ANTHROPIC_API_KEY": "sk-client"}
    assert "reset password" in run(f"{found['key']}\n{found['curl']}", **credentials)
    asked = world.model.asked[0]
    assert "sk-client" in asked.headers.get("authorization", asked.headers.get("x-api-key", ""))
    session = Session.objects.get(project=world.project)
    assert (session.integration, session.call_count) == ("gateway", 1)
    again = shown(console, world, name)
    assert "chip ok" in again
    assert snippets(again)["key"] == "export LOOPGUARD_KEY=lg_…"


@pytest.mark.parametrize("name", SHAPES)
def test_the_base_url_with_a_new_token_works_without_a_key(world: World, console, name):
    world.model.script = lambda asked: answered(asked, SHAPES[name], "Hello.")
    page = shown(console, world, name, action="create_token", id=world.backend(name).public_id)
    variable = f"{name.upper()}_BASE_URL"
    base_url = run(f'{snippets(page)["token"]}\nprintf %s "${variable}"')
    assert GatewayToken.objects.get().public_id in base_url
    path = "/chat/completions" if name == "openai" else "/v1/messages"
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert httpx.post(base_url + path, json=request).status_code == 200
    assert "lgw_…" in snippets(shown(console, world, name))["token"]


@pytest.mark.skipif(not SDK_PYTHON, reason="LOOPGUARD_SDK_PYTHON names no Python with the packages")
@pytest.mark.parametrize("name", SHAPES)
def test_the_sdks_send_requests_with_the_snippet(world: World, console, name, tmp_path):
    world.model.script = lambda asked: answered(asked, SHAPES[name], "Hello.", [call()])
    found = snippets(shown(console, world, name, action="create_key"))
    (tmp_path / "agent.py").write_text(f"{found['python']}\n{SDK_CALLS[name]}\n")
    credentials = {"OPENAI_API_KEY": "sk-client", "ANTHROPIC_API_KEY": "sk-client"}
    out = run(f"{found['key']}\n{SDK_PYTHON} {tmp_path / 'agent.py'}", **credentials)
    assert "search" in out
    assert Session.objects.get(project=world.project).call_count == 1


PROGRAMS = {
    "java": ("Agent.java", "javac", "javac -Xlint:all -Werror Agent.java && java Agent"),
    "go": ("agent.go", "go", "go vet agent.go && go run agent.go"),
}


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_program_of_a_language_compiles_and_is_guarded(world: World, console, language, tmp_path):
    file, compiler, command = PROGRAMS[language]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    found = snippets(shown(console, world, "openai", action="create_key"))
    (tmp_path / file).write_text(found[language])
    variables = {"OPENAI_API_KEY": "sk-client", "HOME": str(tmp_path)}
    assert "reset password" in run(f"{found['key']}\ncd {tmp_path}\n{command}", **variables)
    assert world.model.asked[0].headers["authorization"] == "Bearer sk-client"
    assert Session.objects.get(project=world.project).call_count == 1


def test_the_settings_of_claude_code_are_its_variables(world: World, console):
    found = snippets(shown(console, world, "anthropic", action="create_key"))
    out = run(f"{found['key']}\n{found['claude-code']}\nenv")
    values = dict(line.split("=", 1) for line in out.splitlines())
    assert values["ANTHROPIC_BASE_URL"] == world.base_url("anthropic")
    assert values["ANTHROPIC_CUSTOM_HEADERS"] == f"LoopGuard-Key: {values['LOOPGUARD_KEY']}"


def test_the_settings_of_codex_are_toml_with_the_address(world: World, console):
    settings = tomllib.loads(snippets(shown(console, world, "openai"))["codex"])
    provider = settings["model_providers"][settings["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == (world.base_url("openai"), "responses")
    assert provider["env_http_headers"] == {"LoopGuard-Key": "LOOPGUARD_KEY"}


@pytest.mark.parametrize("name", BASE_URL_GUIDES)
def test_python_snippets_compile_and_every_page_says_what_it_prevents(world: World, console, name):
    page = shown(console, world, name)
    if "python" in snippets(page):
        compile(snippets(page)["python"], "page", "exec")
    guide, words = BASE_URL_GUIDES[name], html.unescape(re.sub(r"\s+", " ", page))
    assert all(sentence in words for sentence in (*guide.prevents, guide.check, guide.summary))


def test_the_settings_of_litellm_are_those_of_the_documentation(world: World, console):
    """The documented ones are tested with the real proxy."""
    shown_lines = snippets(shown(console, world, "litellm", action="create_key"))["litellm"].splitlines()
    documented = CONFIGURATION.read_text().replace("https://loopguard.example", world.url).splitlines()
    missing = [line for line in shown_lines if line not in documented and "extra_headers" not in line]
    assert missing == []
    assert ApiKey.objects.filter(name="LiteLLM").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("name", SHAPES)
def test_a_page_creates_the_backend_that_is_missing(name):
    project = make_project()
    client = Client()
    client.force_login(make_member(project))
    url = f"/p/{project.slug}/connect/base-url/{name}"
    assert "has no backend for this API yet" in text(client.get(url))
    client.post(url, {"action": "create_backend"})
    row = GatewayBackend.objects.get(project=project)
    assert (row.name, row.kind, row.base_url) == (name, name, BASE_URL_GUIDES[name].base_url)
    assert f"/gateway/{name}" in text(client.get(url))
    assert client.get(f"/p/{project.slug}/connect/base-url/emacs").status_code == 404
    assert client.post(url, {"action": "other"}).status_code == 404
