"""Environment variables, read and checked once before anything starts.

Contains names, defaults and checks; ``settings`` applies the values. A wrong value ends the start with one sentence
that names the variable.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

_FREE_SPACE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(%|MB|GB)", re.ASCII)
_PREFIX = "LOOPGUARD_"
MODES = ("embedded", "production", "test")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
MIN_SECRET_LENGTH = 32
MIN_SECRET_VARIETY = 8
"""Minimum number of different characters in a secret key.

One in several million strings of 32 random hexadecimal digits has fewer.
"""
DEFAULT_UPSTREAMS = (
    "https://api.openai.com, https://api.anthropic.com, https://generativelanguage.googleapis.com"
)
_LAST_PORT = 65_535
_UNKNOWN_PARAMETER = re.compile(r'URI query parameter: "([\w-]{1,60})"')
_CREDENTIAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_CREDENTIAL = re.compile(r"[\x21-\x7e]{1,4096}", re.ASCII)
MAX_PROCESSES = 16
MAX_WEB_THREADS = 12
"""The connections of the database that a process holds."""
MAX_GUARD_SECONDS = 20
"""As long as any other request may take."""
MAX_DRAIN_SECONDS = 60
"""Load balancers that look more rarely than that would need minutes for each process of a roll-out."""
OWNER_VARIABLE = "LOOPGUARD_OWNER_DATABASE_URL"
SECRETS = (
    "DATABASE_URL",
    OWNER_VARIABLE,
    "REDIS_URL",
    "LOOPGUARD_SECRET_KEY",
    "LOOPGUARD_EARLIER_SECRET_KEYS",
    "LOOPGUARD_SIGNAL_URL",
    "LOOPGUARD_MAIL_URL",
    "LOOPGUARD_JUDGE_KEY",
    "LOOPGUARD_JUDGE_KEYS",
    "LOOPGUARD_GATEWAY_CREDENTIALS",
)
"""Variables that may be files of `LOOPGUARD_SECRETS_FOLDER` instead."""
_MAX_SECRET_BYTES = 64 * 1024
DEFAULT_MIN_FREE = "5%, 500 MB"
_LEAST_FREE_BYTES = 64 * 1024**2
TEST_CLOCK_VARIABLE = "LOOPGUARD_TEST_CLOCK"
_LATEST_TEST_SECONDS = 10**11
MAX_LOOPING_SECONDS = 3600
"""After an hour without an event a session has ended."""
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


class EnvironmentProblem(Exception):
    """An environment variable is missing or wrong; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The checked values of the environment.

    Attributes
    ----------
    mode
        ``embedded`` (under the supervisor, plain HTTP on this machine), ``production`` or ``test``.
    database
        Connection parameters in Django's form, of the role that the processes run as.
    owner_database
        The same of the role that owns the tables, for migrations; None where one role does both, and in
        processes that do not migrate.
    redis_url
        Broker and channel layer, one server.
    public_url, live_url
        Addresses of pages and of live connections; equal in production, consecutive ports when embedded.
    alert_allowed_networks
        Private networks that alerts may be sent to, over plain http and to any port.
    key_requests_per_second
        Requests per second that each process of ``web`` accepts from one key; 0 for no limit.
    database_folder
        Folder of the database files, on a disk of this machine; empty when unknown.
    import_folder
        Folder of uploaded transcripts, the same for `web` and `worker`; empty for the one in the data folder.
    min_free
        Free space that this disk must keep to accept events: a share from 0 to 1, and bytes. The smaller one counts.
    web_threads
        How many requests a process of `web` answers at a time; the others wait for their turn.
    require_second_factor
        Whether every member needs a second factor, not only those of projects that require one.
    gateway_upstreams
        Addresses under which gateway backends are allowed.
    gateway_credentials
        Credentials that backends may name, by name.
    guard_seconds
        The longest time to the response of a guard call, from the arrival of its body.
    drain_seconds
        How long `web` and `live` go on answering after SIGTERM, while their readiness says that they end.
    looping_seconds
        How long after the newest call of its loop a session counts as looping now.
    earlier_secret_keys
        Keys that sessions of the console may still be signed with.
    signal_url
        What a worker asks each minute while LoopGuard works; empty for nothing.
    probe_address
        Where a worker or beat answers probes and shows its metrics: address and port; None for nowhere.
    test_clock
        In the mode ``test``: a file with the time, in seconds since 1970, for everything that time is counted for;
        empty for the time of the machine.
    """

    mode: str
    secret_key: str
    database: dict[str, object]
    redis_url: str
    public_url: str
    live_url: str
    allowed_hosts: tuple[str, ...]
    trusted_proxies: int
    log_json: bool
    log_level: str = "INFO"
    alert_allowed_networks: tuple[str, ...] = ()
    key_requests_per_second: float = 1000.0
    owner_database: dict[str, object] | None = None
    database_folder: str = ""
    import_folder: str = ""
    min_free: tuple[float, float] = (0.0, 0.0)
    web_threads: int = 1
    require_second_factor: bool = False
    gateway_upstreams: tuple[str, ...] = ()
    gateway_credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    guard_seconds: float = 1.5
    drain_seconds: float = 0.0
    looping_seconds: int = 120
    earlier_secret_keys: tuple[str, ...] = field(default=(), repr=False)
    signal_url: str = field(default="", repr=False)
    probe_address: tuple[str, int] | None = None
    test_clock: str = ""


def unknown_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that begin as LoopGuard's and are none, each with the known one whose name is nearest.

    The nearest one is empty where no name resembles it.
    """
    lines = (Path(__file__).parent / "variables.txt").read_text("utf-8").splitlines()
    known = [line for line in lines if line and not line.startswith("#")]
    own = sorted(name for name in env if name.startswith(_PREFIX) and name not in known)
    return {name: next(iter(get_close_matches(name, known, n=1)), "") for name in own}


def adopt_secrets(env: MutableMapping[str, str]) -> None:
    """Set the variables that are files of `LOOPGUARD_SECRETS_FOLDER`, each with the name of a variable.

    Files of other names are left alone: an orchestrator may put more there. Doing it again changes nothing.

    Raises
    ------
    EnvironmentProblem
        A file cannot be read, or the variable is set to something else as well.
    """
    folder = env.get("LOOPGUARD_SECRETS_FOLDER", "")
    if not folder:
        return
    if not Path(folder).is_dir():
        raise EnvironmentProblem(f"LOOPGUARD_SECRETS_FOLDER must name a folder, not {folder!r}.")
    for name in SECRETS:
        file = Path(folder, name)
        try:
            with file.open(encoding="utf-8") as opened:
                value = opened.read(_MAX_SECRET_BYTES).strip()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError):
            raise EnvironmentProblem(f"{name} cannot be read from the file {str(file)!r}.") from None
        if env.get(name, value) != value:
            raise EnvironmentProblem(
                f"{name} is set, and the file {str(file)!r} holds another value: remove one."
            )
        env[name] = value


def read(env: Mapping[str, str] = os.environ) -> Environment:
    """Read and check the environment.

    Raises
    ------
    EnvironmentProblem
        When a variable is missing or wrong.
    """
    mode = env.get("LOOPGUARD_MODE", "production")
    if mode not in MODES:
        raise EnvironmentProblem(f"LOOPGUARD_MODE must be one of {', '.join(MODES)}, not {mode!r}.")
    secret_key = env.get("LOOPGUARD_SECRET_KEY", "")
    if mode == "test":
        secret_key = secret_key or "only-for-tests-" + "x" * MIN_SECRET_LENGTH
    _check_secret_key("LOOPGUARD_SECRET_KEY", secret_key, mode)
    earlier_keys = tuple(filter(None, env.get("LOOPGUARD_EARLIER_SECRET_KEYS", "").replace(",", " ").split()))
    for earlier_key in earlier_keys:
        _check_secret_key("Each of LOOPGUARD_EARLIER_SECRET_KEYS", earlier_key, mode)
    signal_url = env.get("LOOPGUARD_SIGNAL_URL", "")
    if signal_url:
        _check_signal_url(signal_url)
    public_url = env.get("LOOPGUARD_URL", "http://127.0.0.1:8300").rstrip("/")
    live_url = env.get("LOOPGUARD_LIVE_URL", public_url).rstrip("/")
    for name, url in (("LOOPGUARD_URL", public_url), ("LOOPGUARD_LIVE_URL", live_url)):
        _check_address(name, url, mode)
    hosts = tuple(h.strip() for h in env.get("LOOPGUARD_ALLOWED_HOSTS", "").split(",") if h.strip())
    if mode == "production" and "*" in hosts:
        raise EnvironmentProblem("LOOPGUARD_ALLOWED_HOSTS must name hosts; '*' is not allowed in production.")
    if any(_has_port(host) for host in hosts):
        raise EnvironmentProblem("LOOPGUARD_ALLOWED_HOSTS must name hosts without ports.")
    if not hosts:
        hosts = (str(urlsplit(public_url).hostname), "127.0.0.1", "localhost", "[::1]")
    proxies = env.get("LOOPGUARD_TRUSTED_PROXIES", "0")
    if not proxies.isdecimal():
        raise EnvironmentProblem(
            "LOOPGUARD_TRUSTED_PROXIES must be the number of reverse proxies in front of LoopGuard, 0 or more."
        )
    networks = tuple(
        part.strip() for part in env.get("LOOPGUARD_ALERT_ALLOWED_NETWORKS", "").split(",") if part.strip()
    )
    for network in networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            raise EnvironmentProblem(
                f"LOOPGUARD_ALERT_ALLOWED_NETWORKS must list networks such as 10.0.0.0/8, not {network!r}."
            ) from error
    database = database_parameters(env.get("DATABASE_URL", ""))
    web_processes(env)
    worker_processes(env)
    return Environment(
        mode=mode,
        secret_key=secret_key,
        earlier_secret_keys=earlier_keys,
        signal_url=signal_url,
        database=database,
        owner_database=_owner_parameters(env.get(OWNER_VARIABLE, ""), database.get("USER")),
        redis_url=_redis_url(env.get("REDIS_URL", DEFAULT_REDIS_URL)),
        public_url=public_url,
        live_url=live_url,
        allowed_hosts=hosts,
        trusted_proxies=int(proxies),
        log_json=env.get("LOOPGUARD_LOG", "text") == "json",
        log_level=_log_level(env.get("LOOPGUARD_LOG_LEVEL", "") or "INFO"),
        alert_allowed_networks=networks,
        key_requests_per_second=_requests_per_second(env.get("LOOPGUARD_KEY_REQUESTS_PER_SECOND", "1000")),
        database_folder=env.get("LOOPGUARD_DATABASE_FOLDER", ""),
        import_folder=env.get("LOOPGUARD_IMPORT_FOLDER", ""),
        min_free=_min_free(env.get("LOOPGUARD_MIN_FREE", "") or DEFAULT_MIN_FREE),
        web_threads=_web_threads(env.get("LOOPGUARD_WEB_THREADS", "")),
        require_second_factor=_switch(env, "LOOPGUARD_REQUIRE_SECOND_FACTOR"),
        gateway_upstreams=_upstreams(env.get("LOOPGUARD_GATEWAY_UPSTREAMS", DEFAULT_UPSTREAMS)),
        gateway_credentials=_credentials(env.get("LOOPGUARD_GATEWAY_CREDENTIALS", "")),
        guard_seconds=_guard_seconds(env.get("LOOPGUARD_GUARD_SECONDS", "") or "1.5"),
        drain_seconds=drain_seconds(env),
        looping_seconds=_looping_seconds(env.get("LOOPGUARD_LOOPING_SECONDS", "") or "120"),
        probe_address=_probe_address(env.get("LOOPGUARD_PROBE_ADDRESS", "")),
        test_clock=_test_clock(env.get(TEST_CLOCK_VARIABLE, "").strip(), mode),
    )


def _test_clock(file: str, mode: str) -> str:
    if not file:
        return ""
    if mode != "test":
        raise EnvironmentProblem(
            f"{TEST_CLOCK_VARIABLE} replaces the time of the server, and is only for tests: remove it, or set "
            f"LOOPGUARD_MODE=test, not {mode!r}."
        )
    try:
        is_time = 0 < float(Path(file).read_text(encoding="ascii")) < _LATEST_TEST_SECONDS
    except (OSError, ValueError):
        is_time = False
    if not is_time:
        raise EnvironmentProblem(
            f"{TEST_CLOCK_VARIABLE} must name a file with a number of seconds since 1970, not {file!r}."
        )
    return file


def _probe_address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    parts = split_address(f"//{text}")
    try:
        host = str(ipaddress.ip_address(parts.hostname or "")) if parts is not None else ""
    except ValueError:
        host = ""
    if parts is None or not host or not parts.port or parts.netloc != text or parts.username is not None:
        raise EnvironmentProblem(
            f"LOOPGUARD_PROBE_ADDRESS must be an IP address and a port such as 127.0.0.1:8302, not {text!r}."
        )
    return host, parts.port


def _switch(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "") or "0"
    if text not in ("0", "1"):
        raise EnvironmentProblem(f"{name} must be 1 or 0, not {text!r}.")
    return text == "1"


def _owner_parameters(url: str, runtime_role: object) -> dict[str, object] | None:
    if not url:
        return None
    owner = database_parameters(url, OWNER_VARIABLE)
    if not runtime_role or owner["USER"] == runtime_role:
        raise EnvironmentProblem(
            f"{OWNER_VARIABLE} names the role that owns the tables; DATABASE_URL must name another role."
        )
    return owner


def split_address(url: str) -> SplitResult | None:
    """Return the parts of an address; None if it is malformed, or has a port that does not exist."""
    try:
        parts = urlsplit(url)
        has_port_0 = parts.port == 0
    except ValueError:
        return None
    return None if has_port_0 else parts


def _has_port(host: str) -> bool:
    before, colon, port = host.rpartition(":")
    return bool(colon) and (":" not in before or before.endswith("]")) and not port.endswith("]")


def _redis_url(url: str) -> str:
    if split_address(url) is None:
        # The address is not shown, as it may contain a password.
        raise EnvironmentProblem("REDIS_URL must be an address such as redis://:password@host:6379/0.")
    return url


def _upstreams(text: str) -> tuple[str, ...]:
    urls = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for url in urls:
        parts = split_address(url)
        is_http = parts is not None and parts.scheme in ("http", "https")
        if parts is None or not is_http or not parts.hostname or parts.query or parts.username:
            raise EnvironmentProblem(
                f"LOOPGUARD_GATEWAY_UPSTREAMS must list addresses such as https://api.openai.com, not {url!r}."
            )
    return urls


def _credentials(text: str) -> dict[str, str]:
    found = {}
    for number, part in enumerate((one.strip() for one in text.split(",") if one.strip()), 1):
        name, _, value = part.partition("=")
        if not _CREDENTIAL_NAME.fullmatch(name.strip()) or not _CREDENTIAL.fullmatch(value.strip()):
            # The entry is not shown: it may be a credential without its name.
            raise EnvironmentProblem(
                "LOOPGUARD_GATEWAY_CREDENTIALS must list credentials such as openai=sk-…, with names of letters,"
                f" digits, hyphens and underscores; entry {number} is invalid."
            )
        found[name.strip()] = value.strip()
    return found


def _log_level(text: str) -> str:
    level = text.strip().upper()
    if level not in LOG_LEVELS:
        raise EnvironmentProblem(f"LOOPGUARD_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, not {text!r}.")
    return level


def _requests_per_second(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise EnvironmentProblem(
            f"LOOPGUARD_KEY_REQUESTS_PER_SECOND must be a number of requests, 0 for no limit, not {text!r}."
        )
    return number


def drain_seconds(env: Mapping[str, str]) -> float:
    """Return how long `web` and `live` go on answering after SIGTERM.

    Raises
    ------
    EnvironmentProblem
        It is no number of seconds, or too many.
    """
    text = env.get("LOOPGUARD_DRAIN_SECONDS", "") or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_DRAIN_SECONDS:
        raise EnvironmentProblem(
            f"LOOPGUARD_DRAIN_SECONDS must be a number of seconds from 0 to {MAX_DRAIN_SECONDS}, not {text!r}."
        )
    return seconds


def _looping_seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 10 <= int(text) <= MAX_LOOPING_SECONDS):
        raise EnvironmentProblem(
            f"LOOPGUARD_LOOPING_SECONDS must be a number of seconds from 10 to {MAX_LOOPING_SECONDS:,}, not {text!r}."
        )
    return int(text)


def web_processes(env: Mapping[str, str]) -> int:
    """Return how many processes of `web` the command `up` starts: by default two, or one on a single core.

    Raises
    ------
    EnvironmentProblem
        When the variable is wrong.
    """
    return _processes(env, "LOOPGUARD_WEB_PROCESSES")


def worker_processes(env: Mapping[str, str]) -> int:
    """Return how many workers the command `up` starts; as `web_processes`."""
    return _processes(env, "LOOPGUARD_WORKER_PROCESSES")


def _processes(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if not text:
        return min(os.cpu_count() or 1, 2)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PROCESSES:
        raise EnvironmentProblem(f"{name} must be between 1 and {MAX_PROCESSES}, not {text!r}.")
    return int(text)


def _web_threads(text: str) -> int:
    """Return the number of threads: by default more than cores, as some wait for the database."""
    if not text:
        return min(2 * (os.cpu_count() or 1) + 1, MAX_WEB_THREADS)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WEB_THREADS:
        raise EnvironmentProblem(
            f"LOOPGUARD_WEB_THREADS must be between 1 and {MAX_WEB_THREADS}, not {text!r}."
        )
    return int(text)


def _guard_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.2 <= seconds <= MAX_GUARD_SECONDS:
        raise EnvironmentProblem(
            f"LOOPGUARD_GUARD_SECONDS must be between 0.2 and {MAX_GUARD_SECONDS}, not {text!r}."
        )
    return seconds


def _min_free(text: str) -> tuple[float, float]:
    if text.strip() == "0":
        return 0.0, 0.0
    share = size = math.inf
    for part in text.split(","):
        found = _FREE_SPACE.fullmatch(part.strip())
        if found is None or (found[2] == "%" and float(found[1]) > 100):
            raise EnvironmentProblem(
                "LOOPGUARD_MIN_FREE must be a share such as 5%, an "
                f"amount in MB or GB, or both with a comma; not {text!r}."
            )
        if found[2] == "%":
            share = float(found[1]) / 100
        else:
            size = float(found[1]) * (1024**2 if found[2] == "MB" else 1024**3)
    return share, size


def required_free_bytes(env: Mapping[str, str], disk_bytes: int) -> float:
    """Return the free space that a disk of this size must keep for events to be accepted.

    `detection.services.storage.disk_space` decides the same from the settings.
    """
    share, size = _min_free(env.get("LOOPGUARD_MIN_FREE", "") or DEFAULT_MIN_FREE)
    wanted = min(share * disk_bytes, size)
    return max(wanted, _LEAST_FREE_BYTES) if wanted else 0.0


def database_parameters(url: str, name: str = "DATABASE_URL") -> dict[str, object]:
    """Turn ``postgresql://user:password@host:port/name`` into Django's parameters.

    Everything that libpq reads in such an address works: several hosts, a socket folder as the host, and each of its
    parameters in the query.

    Raises
    ------
    EnvironmentProblem
        The address is not one of PostgreSQL, or has a parameter that libpq does not know.
    """
    if not url:
        return {"NAME": "loopguard"}
    if not url.startswith(("postgres://", "postgresql://")):
        raise EnvironmentProblem(f"{name} must start with postgresql://; LoopGuard runs on PostgreSQL only.")
    try:
        options = conninfo_to_dict(url)
    except ProgrammingError as error:
        # Other errors quote parts of the address, which may be of the password.
        unknown = _UNKNOWN_PARAMETER.search(str(error))
        reason = (
            f"has an unknown parameter: {unknown[1]}"
            if unknown
            else "must be an address such as postgresql://user:password@host:5432/name, with % and the hexadecimal code"
            " for each special character of user, password and parameters"
        )
        raise EnvironmentProblem(f"{name} {reason}.") from None
    # A service names its database itself.
    default_name = "" if "service" in options else "loopguard"
    ports = str(options.get("port", "")).split(",")
    if not all(one == "" or (one.isdecimal() and 1 <= int(one) <= _LAST_PORT) for one in ports):
        raise EnvironmentProblem(f"{name} must have a port from 1 to 65535, or none.")
    return {
        "NAME": options.pop("dbname", default_name),
        "USER": options.pop("user", ""),
        "PASSWORD": options.pop("password", ""),
        "HOST": options.pop("host", ""),
        "PORT": options.pop("port", ""),
        "OPTIONS": options,
    }


def _check_signal_url(url: str) -> None:
    parts = split_address(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        # The address is not shown: its path is often the only secret of the receiver.
        raise EnvironmentProblem("LOOPGUARD_SIGNAL_URL must be an http or https address without a user name.")


def _check_secret_key(name: str, secret_key: str, mode: str) -> None:
    if len(secret_key) < MIN_SECRET_LENGTH:
        raise EnvironmentProblem(
            f"{name} must be set to at least {MIN_SECRET_LENGTH} random characters "
            "(python3 -c 'import secrets; print(secrets.token_urlsafe(48))')."
        )
    if mode == "production" and _is_weak(secret_key):
        raise EnvironmentProblem(
            f"{name} must be random: this one is repetitive or an example from a document."
        )


def _check_address(name: str, url: str, mode: str) -> None:
    parts = split_address(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise EnvironmentProblem(f"{name} must be an http or https address, not {url!r}.")
    if mode == "production" and parts.scheme == "http" and not _is_this_machine(url):
        raise EnvironmentProblem(
            f"{name} must be an https address in production, not {url!r}: passwords and keys would be sent "
            "unencrypted. Only localhost may use plain http."
        )


def _is_weak(secret_key: str) -> bool:
    """Return whether a secret is an example or a pattern instead of random characters."""
    lowered = secret_key.lower()
    examples = (
        "change-me",
        "changeme",
        "change_me",
        "insecure",
        "example",
        "your-secret",
        "your_secret",
        "placeholder",
    )
    if any(word in lowered for word in examples):
        return True
    return len(set(secret_key)) < MIN_SECRET_VARIETY


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
