"""An upload through the form, and the page that follows the import by itself."""

import pytest
from playwright.sync_api import Page, expect

from detection.models import Role
from detection.services.ingestion import import_worker
from tests.browser.pages import complaints, noise_of, sign_in
from tests.support.projects import make_member, make_project
from tests.support.transcripts import claude_code, lines


@pytest.fixture
def project(site, settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path / "imports")
    return make_project("support")


def choose(page: Page, site, project, content: bytes) -> None:
    sign_in(page, site, make_member(project, Role.OPERATOR))
    page.goto(f"{site.url}/p/{project.slug}/connect/imports")
    page.set_input_files("input[type=file]", {"name": "run.jsonl", "mimeType": "", "buffer": content})


def test_the_page_shows_the_end_of_an_import_without_a_reload(site, project, page):
    noise = noise_of(page)
    choose(page, site, project, lines(claude_code(["make test"] * 8)))
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="Waiting for a worker")).to_be_visible()
    assert complaints(page) == []
    import_worker.run_waiting(lambda: False)
    expect(page.locator("dl .chip", has_text="Finished")).to_be_visible()
    page.get_by_role("link", name="Bash").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Bash")
    assert noise == []


def test_an_import_is_cancelled_from_its_page(site, project, page):
    choose(page, site, project, lines(claude_code(["make test"] * 8)))
    page.get_by_role("button", name="Upload").click()
    cancel, question = page.get_by_role("button", name="Cancel import"), page.get_by_role("alertdialog")
    cancel.press("Enter")
    expect(question.get_by_role("button", name="Back")).to_be_focused()
    assert complaints(page) == []
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    cancel.click()
    question.get_by_role("button", name="Cancel import").click()
    expect(page.get_by_text("Nothing was stored.")).to_be_visible()


def test_files_that_are_too_large_are_not_sent(site, project, page):
    choose(page, site, project, b"{}" * 600_000)
    page.locator("form[data-upload]").evaluate("form => { form.dataset.maxBytes = 1048576 }")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("These files total 2 MB. An upload can be at most 1 MB.")).to_be_visible()
