"""Stored responses: that they exist, and, with a permission of its own, what was said."""

import json
import logging
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_ws.models import StoredResponse
from responses_ws.stores import rows

from .base import ProjectFilter, ReadOnlyAdmin

logger = logging.getLogger(__name__)

CONTENT = ("input_items", "output_items", "response_object")


@admin.register(StoredResponse)
class StoredResponseAdmin(ReadOnlyAdmin):
    """Read-only. Deleting is the client's: it must reach every store and connection, not only this table."""

    list_display = ("id", "project", "model", "status", "created_at", "expires_at", "is_deleted")
    list_filter = (
        "status",
        ("deleted_at", admin.EmptyFieldListFilter),
        "created_at",
        "project__organization",
        ("project", ProjectFilter),
    )
    list_select_related = ("project__organization",)
    search_fields = ("pk__startswith",)
    search_help_text = "A response id, or its beginning."
    fields = ("id", "project", "model", "status", "previous_response_id", "created_at", "expires_at", "deleted_at")

    def get_fields(self, request: HttpRequest, obj: StoredResponse | None = None) -> tuple[str, ...]:
        return (*self.fields, *CONTENT) if self.may_see_content(request) else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: StoredResponse | None = None) -> tuple[str, ...]:
        return self.get_fields(request, obj)

    def get_queryset(self, request: HttpRequest) -> Any:
        # What was said is large, and not for everyone who may see this list.
        return super().get_queryset(request).defer("body")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> StoredResponse | None:
        response = super().get_object(request, object_id, from_field)
        if response is not None and self.may_see_content(request):
            logger.info("user %s looks at the content of %s", request.user.pk, response.pk)
            response.content = rows.load(response.project_id, response.pk)
        return response

    @staticmethod
    def may_see_content(request: HttpRequest) -> bool:
        return request.user.has_perm("responses_ws.view_content")

    @admin.display(description="deleted", boolean=True)
    def is_deleted(self, response: StoredResponse) -> bool:
        return response.deleted_at is not None

    @admin.display(description="input")
    def input_items(self, response: StoredResponse) -> SafeString | str:
        return _shown(response, lambda chain: chain.items[: chain.input_end])

    @admin.display(description="output")
    def output_items(self, response: StoredResponse) -> SafeString | str:
        return _shown(response, lambda chain: chain.items[chain.input_end :])

    @admin.display(description="response object")
    def response_object(self, response: StoredResponse) -> SafeString | str:
        return _shown(response, lambda chain: {**chain.response, "output": "as above"})


def _shown(response: StoredResponse, part: Any) -> SafeString | str:
    """A part of the content as indented JSON, escaped: it is what strangers wrote."""
    if response.content is None:
        return "No longer kept: deleted or expired."
    text = json.dumps(part(response.content), indent=2, ensure_ascii=False)
    return format_html('<pre class="responses-ws-content">{}</pre>', text)
