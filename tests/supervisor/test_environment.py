"""Production does not start with settings that are not safe."""

import secrets

import pytest

from loopguard_site import env

SAFE = {
    "LOOPGUARD_MODE": "production",
    "LOOPGUARD_SECRET_KEY": secrets.token_hex(32),
    "LOOPGUARD_URL": "https://loopguard.example",
    "DATABASE_URL": "postgresql://a:b@127.0.0.1/c",
}


@pytest.mark.parametrize(
    "key",
    ["x" * 64, "abcabc" * 8, "django-insecure-" + "q8z!kd93&" * 5, "change-me-" + "0123456789abcdef" * 3],
)
def test_a_secret_key_that_is_not_random_is_rejected(key):
    with pytest.raises(env.EnvironmentProblem, match=r"^LOOPGUARD_SECRET_KEY must be random"):
        env.read(SAFE | {"LOOPGUARD_SECRET_KEY": key})


@pytest.mark.parametrize("name", ["LOOPGUARD_URL", "LOOPGUARD_LIVE_URL"])
def test_pages_are_not_served_over_plain_http(name):
    with pytest.raises(env.EnvironmentProblem, match=rf"^{name} must be an https address in production"):
        env.read(SAFE | {name: "http://loopguard.example"})


@pytest.mark.parametrize(
    "url", ["https://loopguard.example", "http://localhost:8300", "http://127.0.0.1", "http://[::1]:8300"]
)
def test_https_and_this_machine_are_accepted(url):
    for _ in range(50):
        assert (
            env.read(SAFE | {"LOOPGUARD_URL": url, "LOOPGUARD_SECRET_KEY": secrets.token_hex(16)}).public_url
            == url
        )
