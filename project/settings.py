"""The demo project: SQLite and no services by default; PostgreSQL, Redis and a broker by environment."""

import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from celery.schedules import crontab

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(os.environ.get("RESPONSES_WS_VAR", BASE_DIR / "var"))
VAR_DIR.mkdir(parents=True, exist_ok=True)


def words(name: str, default: str = "") -> list[str]:
    """The comma-separated values of an environment variable."""
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]


DEBUG = os.environ.get("DEBUG", "1") == "1"
# Without DEBUG Django refuses to start until a key is given: API keys are hashed under it.
SECRET_KEY = os.environ.get("SECRET_KEY", "development-only-not-a-secret" if DEBUG else "")
ALLOWED_HOSTS = words("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]")
CSRF_TRUSTED_ORIGINS = words("CSRF_TRUSTED_ORIGINS")
if os.environ.get("BEHIND_PROXY") == "1":
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "responses_ws",
]

if "runserver" in sys.argv:
    # Gives it WebSockets. Not elsewhere: with it comes Twisted, which takes 16 MB of every process.
    INSTALLED_APPS.insert(0, "daphne")

if os.environ.get("UNFOLD") == "1":
    # Before django.contrib.admin: its templates take the place of the admin's.
    INSTALLED_APPS.insert(0, "unfold")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def database(url: str) -> dict:
    """Django's settings for ``postgres://user:password@host:port/name``; empty: SQLite in WAL mode."""
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": VAR_DIR / "db.sqlite3",
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
        "CONN_MAX_AGE": 0,
        # After a restart of the server no dead connection is taken from the pool; and the pool tries again at once, not
        # after a delay that has doubled for as long as the server was away.
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            "pool": {"min_size": 1, "max_size": 10, "timeout": 2, "reconnect_timeout": 1},
            "connect_timeout": 5,
        },
    }


DATABASES = {"default": database(os.environ.get("DATABASE_URL", ""))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"

# Django's ASGI handler spools larger bodies to disk; above our own limit nothing is ever spooled.
FILE_UPLOAD_MAX_MEMORY_SIZE = 17 * 1024 * 1024
DATA_UPLOAD_MAX_MEMORY_SIZE = 17 * 1024 * 1024

# Celery only wakes billing up; the truth is the table of usage records. So a lost message costs seconds, not money.
CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "memory://localhost/")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ROUTES = {"responses_ws.*": {"queue": "responses_ws.billing"}}
CELERY_TASK_TIME_LIMIT = 120
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Its own lines go where all others go.
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# A task that is running at SIGTERM may end within the container's grace (with REMAP_SIGTERM=SIGQUIT).
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 25
if CELERY_BROKER_URL.startswith("redis"):
    # Kombu's hour, plus a sweep of up to 100 s, is too long to wait for the message of a killed worker.
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "visibility_timeout": 300,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
    }
CELERY_BEAT_SCHEDULE = {
    "sweep": {"task": "responses_ws.bill_batch", "schedule": 5.0},
    "reap": {"task": "responses_ws.reap", "schedule": 30.0},
    "alert": {"task": "responses_ws.alert", "schedule": 10.0},
    "check_budgets": {"task": "responses_ws.check_budgets", "schedule": 600.0},
    # One that waits behind others is not needed any more when the next one comes.
    "deliver": {"task": "responses_ws.deliver", "schedule": 10.0, "options": {"expires": 10}},
    "expire_credit": {"task": "responses_ws.expire_credit", "schedule": 600.0},
    "invoice": {"task": "responses_ws.invoice", "schedule": 3600.0},
    "prune": {"task": "responses_ws.prune", "schedule": 3600.0},
    "reconcile": {"task": "responses_ws.reconcile", "schedule": crontab(hour=3, minute=17)},
}

RESPONSES_WS = {
    # SQLite as it is set up above survives no more than the journal does, and takes longer.
    "DURABILITY": os.environ.get("DURABILITY", "commit" if os.environ.get("DATABASE_URL") else "journal"),
    "JOURNAL_DIR": str(VAR_DIR / "journal"),
    "REDIS_URL": os.environ.get("REDIS_URL", ""),
    "METRICS_TOKEN": os.environ.get("METRICS_TOKEN", ""),
    "BACKGROUND_RUNNERS": os.environ.get("BACKGROUND_RUNNERS") == "1",
    "ENGINES": {"scripted": {"ENGINE": "responses_ws.engines.scripted.Scripted"}},
    "MODELS": {"scripted": {"ENGINE": "scripted"}},
    "INVOICES": "all",
}
if os.environ.get("ENGINE_URL"):
    RESPONSES_WS["ENGINES"]["remote"] = {
        "ENGINE": "responses_ws.engines.openai_chat.OpenAIChat",
        "BASE_URL": os.environ["ENGINE_URL"],
        "API_KEY": os.environ.get("ENGINE_API_KEY", ""),
    }
    RESPONSES_WS["MODELS"]["*"] = {"ENGINE": "remote"}
elif "llama" in words("COMPOSE_PROFILES"):
    RESPONSES_WS["ENGINES"]["llama"] = {
        "ENGINE": "responses_ws.engines.llama_cpp.LlamaCpp",
        "BASE_URL": os.environ["LLAMA_URL"],
        "API_KEY": os.environ.get("LLAMA_API_KEY", ""),
    }
    RESPONSES_WS["MODELS"]["*"] = {"ENGINE": "llama"}
elif os.environ.get("EMBEDDED_MODEL") == "1":
    RESPONSES_WS["ENGINES"]["embedded"] = {"ENGINE": "responses_ws.engines.embedded.EmbeddedLlama"}
    RESPONSES_WS["MODELS"]["smollm2"] = {"ENGINE": "embedded"}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        # For machines: the ids of what a line is about, and nothing that anybody has said.
        "json": {"()": "responses_ws.runtime.logs.JsonFormatter"},
    },
    # Whoever causes a line from outside causes twenty in ten seconds.
    "filters": {"brake": {"()": "responses_ws.runtime.logs.Brake"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": os.environ.get("LOG_FORMAT", "plain" if DEBUG else "json"),
            "filters": ["brake"],
        }
    },
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO")},
    "loggers": {
        # A line for each turn and each socket.
        "responses_ws.access": {"level": "INFO" if os.environ.get("ACCESS_LOG") == "1" else "WARNING"},
        # Django's own handler would print a second copy.
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # A traceback for everybody who calls us by a wrong name.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        "celery": {"level": "WARNING"},
        "kombu": {"level": "WARNING"},
    },
}
