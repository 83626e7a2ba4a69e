"""Production does not start with settings that are not safe."""

import os
import re
import secrets
import subprocess
import sys

import pytest

from loopguard_site import env, judge_env, mail_env
from loopguard_site.layout import ROOT
from loopguard_site.supervisor.welcome import FirstStop, curl_line, welcome

SAFE = {
    "LOOPGUARD_MODE": "production",
    "LOOPGUARD_SECRET_KEY": secrets.token_hex(32),
    "LOOPGUARD_URL": "https://loopguard.example",
    "DATABASE_URL": "postgresql://a:b@127.0.0.1/c",
}


@pytest.mark.promise("SEC-27")
@pytest.mark.parametrize(
    "key",
    ["x" * 64, "abcabc" * 8, "django-insecure-" + "q8z!kd93&" * 5, "change-me-" + "0123456789abcdef" * 3],
)
def test_a_secret_key_that_is_not_random_is_rejected(key):
    with pytest.raises(env.EnvironmentProblem, match=r"^LOOPGUARD_SECRET_KEY must be random"):
        env.read(SAFE | {"LOOPGUARD_SECRET_KEY": key})


@pytest.mark.promise("SEC-27")
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


@pytest.mark.promise("SEC-37")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOOPGUARD_URL", "https://loopguard.example:0"),
        ("LOOPGUARD_LIVE_URL", "https://loopguard.example:00"),
        ("LOOPGUARD_URL", "https://[::1"),
        ("LOOPGUARD_LIVE_URL", "https://loopguard.example:65536"),
        ("LOOPGUARD_GATEWAY_UPSTREAMS", "https://api.openai.com, https://models.example:0/v1"),
        ("LOOPGUARD_ALLOWED_HOSTS", "loopguard.example, loopguard.example:0"),
        ("LOOPGUARD_ALLOWED_HOSTS", "[::1]:8300"),
        ("DATABASE_URL", "postgresql://a:b@127.0.0.1:0/c"),
        ("DATABASE_URL", "postgresql://a:b@/c?host=127.0.0.1&port=0"),
        ("REDIS_URL", "redis://:word@127.0.0.1:0/0"),
        ("LOOPGUARD_JUDGE_URL", "https://judge.example:0/v1"),
        ("LOOPGUARD_MAIL_URL", "smtp://mail.example:0"),
    ],
)
def test_an_address_with_a_port_that_does_not_exist_is_rejected(name, value):
    read = {"LOOPGUARD_JUDGE_URL": judge_env.read, "LOOPGUARD_MAIL_URL": mail_env.read}.get(name, env.read)
    with pytest.raises(env.EnvironmentProblem, match=rf"^{name} must"):
        read(SAFE | {name: value})


def test_addresses_without_a_port_and_hosts_in_brackets_are_accepted():
    read = env.read(
        SAFE
        | {
            "LOOPGUARD_ALLOWED_HOSTS": "loopguard.example,[::1],.internal",
            "REDIS_URL": "unix:///run/valkey.sock",
            "LOOPGUARD_GATEWAY_UPSTREAMS": "https://models.example:8443/v1",
        }
    )
    assert read.allowed_hosts == ("loopguard.example", "[::1]", ".internal")


@pytest.mark.parametrize("mode", ["production", "embedded"])
def test_a_test_clock_is_refused_outside_of_tests(mode, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("1800000000")
    with pytest.raises(env.EnvironmentProblem, match=r"^LOOPGUARD_TEST_CLOCK .* is only for tests"):
        env.read(SAFE | {"LOOPGUARD_MODE": mode, "LOOPGUARD_TEST_CLOCK": str(clock)})
    assert env.read(SAFE | {"LOOPGUARD_MODE": mode, "LOOPGUARD_TEST_CLOCK": " "}).test_clock == ""


@pytest.mark.parametrize("content", [None, "", "noon", "-5", "inf", "nan"])
def test_a_test_clock_without_a_time_is_refused(content, tmp_path):
    clock = tmp_path / "clock"
    if content is not None:
        clock.write_text(content)
    with pytest.raises(env.EnvironmentProblem, match=r"^LOOPGUARD_TEST_CLOCK must name a file"):
        env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_TEST_CLOCK": str(clock)})


def test_a_process_says_at_its_start_that_its_clock_is_that_of_a_test(tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("1800000000.5")

    def start(mode):
        given = {**SAFE, "LOOPGUARD_MODE": mode, "LOOPGUARD_TEST_CLOCK": str(clock)}
        command = [sys.executable, "-m", "loopguard_site", "check"]
        return subprocess.run(
            command, cwd=ROOT, env=os.environ | given, capture_output=True, text=True, timeout=60, check=False
        )

    assert re.search(
        rf"warning .*time_is_that_of_the_test_clock .*{re.escape(str(clock))}", start("test").stderr
    )
    refused = start("embedded")
    assert refused.returncode
    assert "LoopGuard cannot start: LOOPGUARD_TEST_CLOCK replaces the time of the server" in refused.stderr


@pytest.fixture
def secrets_folder(tmp_path):
    """A folder of secrets as an orchestrator mounts it: with links, line ends, and files of others."""
    data = tmp_path / "..data"
    data.mkdir()
    for name in ("LOOPGUARD_SECRET_KEY", "DATABASE_URL"):
        (data / name).write_text(f"{SAFE[name]}\n")
        (tmp_path / name).symlink_to(data / name)
    (tmp_path / "LOOPGUARD_MODE").write_text("embedded")
    (tmp_path / "other").write_bytes(b"\xff")
    return tmp_path


def test_secrets_are_read_from_the_files_of_a_folder(secrets_folder):
    given = {"LOOPGUARD_SECRETS_FOLDER": str(secrets_folder), "LOOPGUARD_URL": SAFE["LOOPGUARD_URL"]}
    for _ in range(2):  # a process that has read them starts another one
        env.adopt_secrets(given)
        found = env.read(given)
        assert found.secret_key == SAFE["LOOPGUARD_SECRET_KEY"]
        assert found.database["HOST"] == "127.0.0.1"
        assert found.mode == "production"


def test_a_secret_that_is_set_in_two_ways_or_cannot_be_read_ends_the_start_without_showing_it(
    secrets_folder, tmp_path
):
    given = {"LOOPGUARD_SECRETS_FOLDER": str(secrets_folder), "DATABASE_URL": "postgresql://x:hidden@db/name"}
    with pytest.raises(env.EnvironmentProblem, match=r"^DATABASE_URL is set, and the file ") as error:
        env.adopt_secrets(given)
    assert "hidden" not in str(error.value)
    assert SAFE["DATABASE_URL"] not in str(error.value)
    (secrets_folder / "REDIS_URL").write_bytes(b"\xff\xfe")
    with pytest.raises(env.EnvironmentProblem, match=r"^REDIS_URL cannot be read from the file "):
        env.adopt_secrets({"LOOPGUARD_SECRETS_FOLDER": str(secrets_folder)})
    with pytest.raises(env.EnvironmentProblem, match=r"^LOOPGUARD_SECRETS_FOLDER must name a folder"):
        env.adopt_secrets({"LOOPGUARD_SECRETS_FOLDER": str(tmp_path / "none")})


@pytest.mark.parametrize("problem", [False, True])
def test_a_process_starts_with_the_secrets_of_a_folder(secrets_folder, problem):
    if problem:
        (secrets_folder / "..data" / "LOOPGUARD_SECRET_KEY").write_text("short")
    given = {"LOOPGUARD_SECRETS_FOLDER": str(secrets_folder), "LOOPGUARD_URL": SAFE["LOOPGUARD_URL"]}
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    command = [sys.executable, "-m", "loopguard_site", "diffsettings", "--output", "unified"]
    done = subprocess.run(
        command, cwd=ROOT, env=kept | given, capture_output=True, text=True, timeout=60, check=False
    )
    if problem:
        assert done.returncode
        assert "LoopGuard cannot start: LOOPGUARD_SECRET_KEY must be set to at least 32" in done.stderr
    else:
        assert f"+ SECRET_KEY = {SAFE['LOOPGUARD_SECRET_KEY']!r}" in done.stdout, done.stderr


def test_the_text_of_a_start_names_the_test_clock(tmp_path):
    known = {"LOOPGUARD_URL": "http://127.0.0.1:8300"}
    assert "TEST" not in welcome(known, tmp_path, {}, FirstStop())
    assert "TEST: the time is what /tmp/clock contains." in welcome(
        known | {"LOOPGUARD_TEST_CLOCK": "/tmp/clock"}, tmp_path, {}, FirstStop()
    )


@pytest.mark.parametrize(
    ("first_stop", "promise", "calls"),
    [
        (FirstStop(4, "block"), "same tool call 4 times. The 4th call is blocked.", 4),
        (FirstStop(2, "stop"), "same tool call 2 times. The 2nd call is blocked and ends the session.", 2),
        (FirstStop(3, "hold"), "same tool call 3 times. The 3rd call is held for an answer.", 3),
        (FirstStop(12, "block"), "same tool call 12 times. The 12th call is blocked.", 12),
        (FirstStop(), "four times. Under the present settings, none of them is blocked.", 4),
    ],
)
def test_the_text_of_a_start_promises_what_the_settings_do(tmp_path, first_stop, promise, calls):
    told = welcome({"LOOPGUARD_URL": "http://127.0.0.1:8300"}, tmp_path, {"api_key": "k"}, first_stop)
    assert promise in told
    assert curl_line("http://127.0.0.1:8300", "k", calls) in told
    assert f" {calls}; do curl" in told


@pytest.mark.parametrize("keys", ["short", f"{secrets.token_hex(32)}, {'x' * 64}"])
def test_earlier_secret_keys_have_to_be_random_too(keys):
    with pytest.raises(env.EnvironmentProblem, match="LOOPGUARD_EARLIER_SECRET_KEYS must be"):
        env.read(SAFE | {"LOOPGUARD_EARLIER_SECRET_KEYS": keys})


@pytest.mark.parametrize(
    "url", ["hc-ping.example/s3cret", "ftp://a.example", "https://a:b@c.example/", "https://a.example:0"]
)
def test_an_address_for_the_signal_that_cannot_be_asked_is_rejected_without_being_shown(url):
    with pytest.raises(env.EnvironmentProblem) as problem:
        env.read(SAFE | {"LOOPGUARD_SIGNAL_URL": url})
    assert str(problem.value).startswith("LOOPGUARD_SIGNAL_URL must be")
    assert "example" not in str(problem.value)
