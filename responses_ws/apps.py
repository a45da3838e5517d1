import contextlib

from django.apps import AppConfig, apps


class ResponsesWsConfig(AppConfig):
    name = "responses_ws"
    verbose_name = "Responses API"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Importing registers the checks.
        from . import checks, service_checks  # noqa: F401
        from .runtime import tracing

        if apps.is_installed("django.contrib.admin"):
            # Importing registers its page; the office itself is found by the admin.
            from .playground import office  # noqa: F401

        # Without the package there are no spans, and E006.
        with contextlib.suppress(ImportError):
            tracing.start()
