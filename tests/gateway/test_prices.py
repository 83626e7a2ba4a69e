"""The price table: which price applies, what tokens cost, and its changes through the API and the console."""

import pytest
from django.test import Client

from detection.models import AuditEntry, ModelPrice
from detection.selectors.prices import load_prices
from detection.services.audit import SYSTEM
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.gateway import prices
from tests.console.scenes import text
from tests.support.projects import make_key, make_member, make_project

pytestmark = pytest.mark.django_db
GOOD = {"model": "gpt-5", "input_usd": "1.25", "output_usd": "10"}


@pytest.fixture
def project():
    return make_project()


def save(project, **changes):
    return prices.save_price(project.pk, SYSTEM, **(GOOD | changes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backend", "A/B"), ("backend", "x" * 65), ("model", ""), ("model", "a b"), ("model", "x" * 201), ("model", "*" * 5),
        ("input_usd", ""), ("input_usd", "-1"), ("input_usd", "nan"), ("input_usd", "Infinity"), ("input_usd", "1e9"),
        ("input_usd", "0.0000001"), ("output_usd", "free"), ("cached_input_usd", "-0.1"), ("cache_write_usd", "x"),
    ],
)  # fmt: skip
def test_wrong_values_name_their_field(project, field, value):
    with pytest.raises(Invalid) as raised:
        save(project, **{field: value})
    assert raised.value.field == field
    assert not ModelPrice.objects.exists()


def test_the_most_particular_price_applies(project):
    save(project, model="*", input_usd=1)
    save(project, model="gpt-5*", input_usd=2)
    save(project, model="gpt-5-mini*", input_usd=3)
    save(project, model="*", backend="local", input_usd=4)
    save(make_project(), model="gpt-5*", input_usd=9)
    save(project, model="a[b]?", input_usd=5)
    found = load_prices(project.pk)
    asked = [
        ("openai", "gpt-5-2025-08-07"), ("openai", "GPT-5-mini"), ("openai", "o9"), ("local", "gpt-5-mini"),
        ("openai", "a[b]?"), ("openai", "abc"),
    ]  # fmt: skip
    applied = [found.find(backend, [model]) for backend, model in asked]
    assert [price.input_usd for price in applied if price] == [2, 3, 1, 4, 5, 1]


def test_an_unknown_model_has_no_price_and_the_name_of_the_answer_is_the_second_choice(project):
    save(project)
    found = load_prices(project.pk)
    assert found.find("openai", ["gpt-5-mini"]) is None
    assert found.find("openai", ["alias", "gpt-5"]) is not None


def test_cached_and_written_tokens_have_prices_of_their_own(project):
    save(project, cached_input_usd="0.125", cache_write_usd="2")
    price = load_prices(project.pk).find("", ["gpt-5"])
    assert price is not None
    assert price.cost(1_000_000, 400_000, 100_000, 10_000) == pytest.approx(0.625 + 0.05 + 0.2 + 0.1)
    save(project)  # replaced: both as input again
    price = load_prices(project.pk).find("", ["gpt-5"])
    assert price is not None
    assert price.cost(1_000_000, 400_000, 100_000, 0) == pytest.approx(1.25)
    assert ModelPrice.objects.count() == 1


def test_a_project_has_a_bounded_number_of_prices(project, monkeypatch):
    monkeypatch.setattr(prices, "MAX_PRICES", 1)
    save(project)
    with pytest.raises(Conflict):
        save(project, model="other")
    with pytest.raises(NotFound):
        prices.delete_price(make_project().pk, ModelPrice.objects.get().public_id, SYSTEM)


def test_the_api_saves_lists_and_deletes(project):
    api = Client(headers={"Authorization": f"Bearer {make_key(project)}"})
    price = {"backend": "openai", "model": "gpt-5*", "input_usd": 1.25, "output_usd": 10}
    saved = api.put("/api/v1/prices", price, content_type="application/json")
    assert saved.status_code == 200
    assert saved.json() | {"id": "", "updated_at": "", "version": ""} == {
        "id": "", "backend": "openai", "model": "gpt-5*", "input_usd": 1.25, "cached_input_usd": None, "cache_write_usd": None,
        "output_usd": 10.0, "updated_at": "", "version": "",
    }  # fmt: skip
    assert [one["id"] for one in api.get("/api/v1/prices").json()["items"]] == [saved.json()["id"]]
    wrong = api.put("/api/v1/prices", price | {"model": "gpt 5"}, content_type="application/json")
    assert (wrong.status_code, wrong.json()["path"]) == (422, "model")
    assert api.delete(f"/api/v1/prices/{saved.json()['id']}").status_code == 204
    actions = AuditEntry.objects.filter(action__startswith="price.").order_by("pk")
    assert list(actions.values_list("action", flat=True)) == ["price.save", "price.delete"]


def test_the_console_saves_edits_and_deletes(project):
    client = Client()
    client.force_login(make_member(project))
    base = f"/p/{project.slug}/gateway/prices"
    page = client.post(f"{base}/save", GOOD | {"input_usd": "cheap"})
    assert "must be US dollars per million tokens" in text(page)
    assert client.post(f"{base}/save", GOOD).status_code == 302
    row = ModelPrice.objects.get()
    edited = client.get(base, {"edit": row.public_id}).content.decode()
    assert 'value="1.25"' in edited
    assert 'value="10"' in edited
    assert 'value="claude-x"' in client.get(base, {"model": "claude-x"}).content.decode()
    assert client.post(f"{base}/delete", {"id": row.public_id}).status_code == 302
    assert not ModelPrice.objects.exists()
