"""The page's place in Django's admin: who may open it, and the few things that it asks of the office."""

import json
from typing import Any
from urllib.parse import urlsplit

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.templatetags.static import static
from django.urls import NoReverseMatch, path, reverse
from django.views.decorators.http import require_GET, require_POST

from responses_ws.billing import pricebook
from responses_ws.conf import app_settings
from responses_ws.models import Playground, Project, UsageRecord

from . import keys

STYLES = ("base", "chat", "inspector", "race")


@admin.register(Playground)
class PlaygroundAdmin(admin.ModelAdmin):
    """Lives where a list of rows would, like the dashboard. Where the playground is off there is no such page."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return app_settings.is_playground_on and request.user.has_perm("responses_ws.use_playground")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        listed = [url for url in super().get_urls() if url.name == "responses_ws_playground_changelist"]
        return [
            path("key/", self.admin_site.admin_view(self.key_view), name="responses_ws_playground_key"),
            path("revoke/", self.admin_site.admin_view(self.revoke_view), name="responses_ws_playground_revoke"),
            path("price/", self.admin_site.admin_view(self.price_view), name="responses_ws_playground_price"),
            *listed,
        ]

    def require(self, request: HttpRequest) -> None:
        """Raises Http404 where the playground is off, and PermissionDenied."""
        if not app_settings.is_playground_on:
            raise Http404
        if not self.has_view_permission(request):
            raise PermissionDenied

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self.require(request)
        response = render(
            request, "responses_ws/playground.html", {"config": json.dumps(self.config(request)), "styles": STYLES}
        )
        response["Content-Security-Policy"] = policy(request)
        response["X-Content-Type-Options"] = "nosniff"
        response["Referrer-Policy"] = "no-referrer"
        return response

    def config(self, request: HttpRequest) -> dict[str, Any]:
        """What the page has to know: where things are, and which projects there are."""
        projects = Project.objects.select_related("organization")
        return {
            "api": request.build_absolute_uri(api_path()),
            "key": reverse("admin:responses_ws_playground_key"),
            "revoke": reverse("admin:responses_ws_playground_revoke"),
            "price": reverse("admin:responses_ws_playground_price"),
            "office": reverse("admin:index"),
            "websocket": app_settings.WEBSOCKET,
            "projects": [{"id": project.pk, "name": str(project)} for project in projects],
        }

    def key_view(self, request: HttpRequest) -> HttpResponse:
        """``POST project=ID``: a key for minutes. ``{id, key, seconds}``."""
        self.require(request)
        return _key(request)

    def revoke_view(self, request: HttpRequest) -> HttpResponse:
        """``POST id=ID``: that key is not needed any more."""
        self.require(request)
        return _revoke(request)

    def price_view(self, request: HttpRequest) -> HttpResponse:
        """``GET ?response=ID``: what a response costs. ``{amount_nano, currency, memo, lines: [{component, quantity,
        amount_nano}]}``; null where it is not (yet) recorded, or somebody else's."""
        self.require(request)
        return _price(request)


@require_POST
def _key(request: HttpRequest) -> HttpResponse:
    chosen = request.POST.get("project", "")
    project = get_object_or_404(Project, pk=chosen if chosen.isdecimal() else 0)
    key = keys.issue(request.session, project, request.user.get_username())
    # Never cached: the admin says so of all its pages.
    return JsonResponse({"id": key.pk, "key": key.secret, "seconds": keys.LIFETIME.total_seconds()})


@require_POST
def _revoke(request: HttpRequest) -> HttpResponse:
    chosen = request.POST.get("id", "")
    if not chosen.isdecimal() or not keys.revoke(request.session, int(chosen)):
        raise Http404
    return HttpResponse(status=204)


@require_GET
def _price(request: HttpRequest) -> HttpResponse:
    seen = UsageRecord.objects.filter(response_id=request.GET.get("response", "")).exclude(status="in_progress")
    if not request.user.has_perm("responses_ws.view_usagerecord"):
        seen = seen.filter(api_key__in=keys.own(request.session))
    record = seen.first()
    if record is None:
        return JsonResponse(None, safe=False)
    book = pricebook.read_pages([record.model], [record.organization_id])
    currency = book.currency_of(record.organization_id)
    charge = book.charge(
        currency, record.model, record.service_tier, record.started_at, record.usage, record.tool_calls
    )
    lines = [
        {"component": line.component, "quantity": line.quantity, "amount_nano": line.amount_nano}
        for line in charge.lines
    ]
    return JsonResponse({"amount_nano": charge.amount_nano, "currency": currency, "memo": charge.memo, "lines": lines})


def api_path() -> str:
    """Where the host project has mounted our URLs."""
    try:
        return reverse("responses_ws:responses").removesuffix("/responses").removesuffix("/responses/")
    except NoReverseMatch:
        return "/v1"


def policy(request: HttpRequest) -> str:
    """The page's content security policy: our files, our host, pictures that were put in by hand, and nothing else."""
    # Static files may be on a host of their own.
    parts = urlsplit(static("responses_ws/playground/main.js"))
    files = f"'self' {parts.scheme}://{parts.netloc}" if parts.netloc else "'self'"
    # Older browsers do not take 'self' for sockets.
    socket = f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}"
    return (
        f"default-src 'none'; script-src {files}; style-src {files}; connect-src 'self' {socket}; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
