"""What goes on now, in all processes; and what may be done about it."""

import re
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.urls import path, reverse
from django.views.decorators.http import require_POST

from responses_ws.models import ApiKey, Live
from responses_ws.runtime import bus

from .base import Page

_ID = re.compile(r"(?:req|resp)_[0-9a-zA-Z]{1,100}")


@admin.register(Live)
class LiveAdmin(Page):
    """The page asks for nothing but its socket; what is done is posted here, with the CSRF token of the page."""

    permission = "responses_ws.view_usagerecord"

    def get_urls(self) -> list[Any]:
        orders = [
            path(f"{name}/", self.admin_site.admin_view(require_POST(view)), name=f"responses_ws_live_{name}")
            for name, view in (("close", self.close), ("cancel", self.cancel), ("revoke", self.revoke))
        ]
        return orders + super().get_urls()

    def page(self, request: HttpRequest) -> HttpResponse:
        orders = {
            name: reverse(f"{self.admin_site.name}:responses_ws_live_{name}")
            for name, permission in (("close", "close_socket"), ("cancel", "close_socket"), ("revoke", "revoke_apikey"))
            if request.user.has_perm(f"responses_ws.{permission}")
        }
        return self.render(request, "admin/responses_ws/live.html", {"title": "Live", "orders": orders})

    def close(self, request: HttpRequest) -> HttpResponse:
        """Close a socket, with a code that makes clients connect again."""
        return self._order(request, "socket_closed", "connection_id", "Closed its connection.")

    def cancel(self, request: HttpRequest) -> HttpResponse:
        """End a turn; its client is told the response as it is by then."""
        return self._order(request, "turn_cancelled", "response_id", "Cancelled its turn.")

    def revoke(self, request: HttpRequest) -> HttpResponse:
        """Revoke a key: its sockets close as they do however it is revoked."""
        if not request.user.has_perm("responses_ws.revoke_apikey"):
            raise PermissionDenied
        number = request.POST.get("id", "")
        if not number.isdecimal() or len(number) > 18:
            return HttpResponseBadRequest("No such key.")
        with transaction.atomic():
            keys = ApiKey.objects.filter(pk=int(number))
            key = keys.first()
            if key is None:
                raise Http404("No such key.")
            if keys.revoke():
                self.log_change(request, key, "Revoked in the live view.")
            transaction.on_commit(bus.nudge)
        return JsonResponse({"done": "revoke"})

    @transaction.atomic
    def _order(self, request: HttpRequest, kind: str, name: str, done: str) -> HttpResponse:
        """Tell all processes; the one that it concerns obeys, within half a second."""
        if not request.user.has_perm("responses_ws.close_socket"):
            raise PermissionDenied
        identity = request.POST.get("id", "")
        if _ID.fullmatch(identity) is None:
            return HttpResponseBadRequest("No such id.")
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=ContentType.objects.get_for_model(Live, for_concrete_model=False),
            object_id=identity,
            object_repr=identity,
            action_flag=CHANGE,
            change_message=done,
        )
        bus.tell(kind, **{name: identity})
        return JsonResponse({"done": kind})
