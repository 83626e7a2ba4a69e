"""Django settings: one file, driven by the environment; wiring only, no behaviour."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import cast
from urllib.parse import urlsplit

from django.templatetags.static import static

from detection.engine import policy
from loopguard_site import env as environment
from loopguard_site import heartbeat, judge_env, layout, mail_env

try:
    environment.adopt_secrets(os.environ)
    ENV = environment.read()
    # The override of the environment: TOOL_LOOP_MAX_REPEATS and so on.
    TOOL_LOOP_VALUES = policy.environment_override(os.environ)
    JUDGE = judge_env.read(os.environ)
    MAIL = mail_env.read(os.environ)
except policy.PolicyError as error:
    sys.exit(f"LoopGuard cannot start: {error}")
except environment.EnvironmentProblem as error:
    sys.exit(f"LoopGuard cannot start: {error}")

if JUDGE is not None:
    TOOL_LOOP_VALUES["judge_available"] = True

SECRET_KEY = ENV.secret_key
SECRET_KEY_FALLBACKS = [*ENV.earlier_secret_keys]
SIGNAL_URL, PROBE_ADDRESS = ENV.signal_url, ENV.probe_address
DEBUG = False
ALLOWED_HOSTS = [*ENV.allowed_hosts]
PUBLIC_URL, LIVE_URL = ENV.public_url, ENV.live_url
ALERT_ALLOWED_NETWORKS = ENV.alert_allowed_networks
GATEWAY_UPSTREAMS, GATEWAY_CREDENTIALS = ENV.gateway_upstreams, ENV.gateway_credentials
KEY_REQUESTS_PER_SECOND = ENV.key_requests_per_second
LOOPING_FOR = timedelta(seconds=ENV.looping_seconds)
DATABASE_FOLDER = ENV.database_folder
IMPORT_FOLDER = ENV.import_folder or str(layout.runtime_folder() / "imports")
MIN_FREE_SHARE, MIN_FREE_BYTES = ENV.min_free
TEST_CLOCK = ENV.test_clock
HEARTBEAT_FILE = os.environ.get(heartbeat.VARIABLE, "")
HTTPS = PUBLIC_URL.startswith("https:")

INSTALLED_APPS = [
    "loopguard_site",
    "unfold",
    "django.contrib.admin.apps.SimpleAdminConfig",  # `urls` imports the pages: only `web` has them
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "channels",
    "django_otp",
    "django_otp.plugins.otp_totp",
    "django_otp.plugins.otp_static",
    "detection",
    *(["development"] if layout.has_development() else []),
]
MIDDLEWARE = [
    "detection.web.request_context.RequestContextMiddleware",
    "detection.console.content_security_policy.ContentSecurityPolicyMiddleware",
    # Outside of all that reads or writes bodies.
    "detection.console.compression.CompressionMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "detection.api.problems.ProblemMiddleware",
    "detection.web.request_input.RequestInputMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "loopguard_site.page_middleware.SessionMiddleware",
    "loopguard_site.probe_middleware.CommonMiddleware",
    "detection.console.answered_forms.AnsweredFormMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "loopguard_site.page_middleware.AuthenticationMiddleware",
    "loopguard_site.page_middleware.PageSignInMiddleware",
    "loopguard_site.page_middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "detection.console.error_pages.MethodNotAllowedMiddleware",
]
ROOT_URLCONF = "loopguard_site.urls"
WSGI_APPLICATION = "loopguard_site.wsgi.application"
ASGI_APPLICATION = "loopguard_site.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [layout.asset_folder("templates")],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "detection.console.context_processors.console",
            ]
        },
    }
]

# One statement may not hold a thread, and one forgotten transaction may not hold the vacuum. A server process whose
# client is gone gives up what it waits for. Only the statements of every call have parameters when they reach the
# server: planning them anew takes longer than they do.
_SERVER_OPTIONS = (
    "-c statement_timeout=15000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=30000"
    " -c client_connection_check_interval=1000 -c plan_cache_mode=force_generic_plan -c jit=off -c work_mem=16MB"
)


# Of a standby and its primary, or of several hosts, only the one that can be written to is of use. A server that has
# vanished without closing its connections is noticed after half a minute at most; workers have no deadline.
_CONNECTION_DEFAULTS = {
    "application_name": "loopguard",
    "connect_timeout": 5,
    "keepalives_count": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "target_session_attrs": "read-write",
    "tcp_user_timeout": 25_000,
}


def _database(parameters: dict[str, object], **options: object) -> dict[str, object]:
    given = cast("dict[str, object]", parameters.get("OPTIONS", {}))
    # Of two values for one setting, the server takes the last one: that of the address.
    server_options = f"{_SERVER_OPTIONS} {given.get('options', '')}".rstrip()
    options = {**_CONNECTION_DEFAULTS, **given, "options": server_options, **options}
    return {**parameters, "ENGINE": "detection.sql.postgresql", "OPTIONS": options}


# The pool of tests would keep the test database open when it is to be dropped. An installation with a test clock has
# ended by then.
# After a second try, it leaves a server that is away to who asks for a connection: its pauses would grow to a minute.
_POOL = (
    {"pool": {"min_size": 1, "max_size": 12, "timeout": 5, "reconnect_timeout": 0}}
    if ENV.mode != "test" or ENV.test_clock
    else {}
)
# The statements of every call are prepared: a pooler in between must know prepared statements.
DATABASES = {"default": _database(ENV.database, prepare_threshold=5, **_POOL)}
if ENV.owner_database is not None:
    DATABASES["owner"] = _database(ENV.owner_database)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS = {
    "default": {
        # The queueing layer drops messages beyond 100 a channel; the pub/sub one resubscribes by itself.
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            "hosts": [{"address": ENV.redis_url, "socket_timeout": None, "socket_connect_timeout": 1}],
            "prefix": "loopguard",
        },
    }
}
# Nothing is kept in a cache: Django's caches store pickles, and what must be counted has tables.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
# Tests write the noted attempts when they want to see them.
ATTEMPTS_IN_BACKGROUND = ENV.mode != "test"

CELERY_BROKER_URL = ENV.redis_url
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 4
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CONSUMER = "loopguard_site.celery_consumer:Consumer"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_DEFAULT_QUEUE = "loopguard"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 120,
    "socket_connect_timeout": 1,
    "socket_timeout": 5,
    "socket_keepalive": True,
    "global_keyprefix": "loopguard:",
}
CELERY_TASK_TIME_LIMIT, CELERY_TASK_SOFT_TIME_LIMIT = 90, 60
CELERY_ENABLE_UTC, CELERY_TIMEZONE = True, "UTC"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
# A link that resets a password works once, and this long.
PASSWORD_RESET_TIMEOUT = 24 * 3600
EMAIL_HOST = MAIL["EMAIL_HOST"]
EMAIL_PORT, EMAIL_TIMEOUT = MAIL.get("EMAIL_PORT", 25), MAIL.get("EMAIL_TIMEOUT", 10)
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = MAIL.get("EMAIL_HOST_USER", ""), MAIL.get("EMAIL_HOST_PASSWORD", "")
EMAIL_USE_SSL, EMAIL_USE_TLS = MAIL.get("EMAIL_USE_SSL", False), MAIL.get("EMAIL_USE_TLS", False)
DEFAULT_FROM_EMAIL = MAIL.get("DEFAULT_FROM_EMAIL", "")
OTP_TOTP_ISSUER = "LoopGuard"
# Codes are counted by the throttle of sign-ins. That of the devices has no longest wait: whoever knows a password could
# keep its owner out for years.
OTP_TOTP_THROTTLE_FACTOR = OTP_STATIC_THROTTLE_FACTOR = 0
REQUIRE_SECOND_FACTOR = ENV.require_second_factor
LOGIN_URL, LOGIN_REDIRECT_URL, LOGOUT_REDIRECT_URL = "console:sign_in", "console:home", "console:sign_in"

LANGUAGE_CODE, TIME_ZONE, USE_I18N, USE_TZ = "en", "UTC", False, True
FORMAT_MODULE_PATH = "loopguard_site.formats"
STATIC_FOLDERS = layout.collected_static_folders()
STATIC_URL, STATIC_ROOT = "static/", layout.collected_static_folder(STATIC_FOLDERS)
STATICFILES_DIRS = [layout.asset_folder("static")]
# Of every page of the console, in the order in which they count.
STYLE_SHEETS = [
    f"css/{name}.css"
    for name in (
        "fonts", "tokens", "base", "forms", "frame", "components", "tables", "lists", "strip", "content", "screens",
        "now", "attention", "policies", "loops",
    )
]  # fmt: skip
CLIENT_WHEEL = layout.client_wheel()
CLIENT_SOURCES = str(layout.ROOT / "clients" / "python")
PROGRAM = layout.program_with_data()
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if ENV.mode == "test"
        else "loopguard_site.static_files.BundledStorage"
    },
}

CSRF_FAILURE_VIEW = "detection.console.error_pages.csrf_failed"
CSRF_TRUSTED_ORIGINS = sorted(
    {"{0.scheme}://{0.netloc}".format(urlsplit(url)) for url in (PUBLIC_URL, LIVE_URL)}
)
SESSION_COOKIE_NAME = "__Host-loopguard" if HTTPS else "loopguard"
CSRF_COOKIE_NAME = "__Host-loopguard-csrf" if HTTPS else "loopguard-csrf"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY, SESSION_COOKIE_SAMESITE, CSRF_COOKIE_SAMESITE = True, "Lax", "Lax"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SECURE_CONTENT_TYPE_NOSNIFF, SECURE_REFERRER_POLICY, X_FRAME_OPTIONS = True, "same-origin", "DENY"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin" if HTTPS else None
SECURE_SSL_REDIRECT = HTTPS and ENV.mode == "production"
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
if ENV.trusted_proxies:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
FILE_UPLOAD_HANDLERS = ["detection.web.request_uploads.TranscriptUploadHandler"]

UNFOLD = {
    "SITE_TITLE": "LoopGuard",
    "SITE_HEADER": "LoopGuard",
    "SITE_SUBHEADER": "Administration",
    "SITE_URL": "/",
    "SHOW_HISTORY": True,
    "ENVIRONMENT": None,
    "STYLES": [
        lambda request: static("css/fonts.css"),
        lambda request: static("css/administration.css"),
    ],
    "SCRIPTS": [lambda request: static("js/administration.js")],
    # The console's greys and its accent (static/css/tokens.css), from the palest to the darkest shade.
    "COLORS": {
        "base": {
            "50": "#f7f7f8",
            "100": "#f5f5f7",
            "200": "#e8e8ec",
            "300": "#cfd0d7",
            "400": "#92949e",
            "500": "#686a74",
            "600": "#4f515a",
            "700": "#3d3f47",
            "800": "#26272d",
            "900": "#17181c",
            "950": "#111215",
        },
        "primary": {
            "50": "#edf0fe",
            "100": "#e2e7fe",
            "200": "#d3dafe",
            "300": "#b9c4ff",
            "400": "#a1b1ff",
            "500": "#6d7df2",
            "600": "#3d4fd6",
            "700": "#3343bd",
            "800": "#2a379b",
            "900": "#232e7e",
            "950": "#20253f",
        },
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "structured": {"()": "detection.logs.formatter", "json": ENV.log_json, "level": ENV.log_level}
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "detection": {"level": ENV.log_level},
        "django.request": {"level": "ERROR"},
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
    },
}
