"""Conversations: that they exist, and, with a permission of its own, what they hold."""

import json
import logging
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_ws.models import Conversation
from responses_ws.stores import conversations

from .base import ProjectFilter, ReadOnlyAdmin

logger = logging.getLogger(__name__)


@admin.register(Conversation)
class ConversationAdmin(ReadOnlyAdmin):
    """Read-only: adding and deleting is the client's."""

    list_display = ("id", "project", "length", "is_locked", "created_at", "is_deleted")
    list_filter = (
        ("deleted_at", admin.EmptyFieldListFilter),
        "created_at",
        "project__organization",
        ("project", ProjectFilter),
    )
    list_select_related = ("project__organization",)
    search_fields = ("pk__startswith",)
    search_help_text = "A conversation id, or its beginning."
    fields = ("id", "project", "metadata", "length", "holder", "locked_until", "created_at", "deleted_at")

    def get_fields(self, request: HttpRequest, obj: Conversation | None = None) -> tuple[str, ...]:
        return (*self.fields, "items") if request.user.has_perm("responses_ws.view_content") else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Conversation | None = None) -> tuple[str, ...]:
        return self.get_fields(request, obj)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        conversation = super().get_object(request, object_id, from_field)
        if conversation is not None and request.user.has_perm("responses_ws.view_content"):
            logger.info("user %s looks at the content of %s", request.user.pk, conversation.pk)
        return conversation

    @admin.display(description="deleted", boolean=True)
    def is_deleted(self, conversation: Conversation) -> bool:
        return conversation.deleted_at is not None

    @admin.display(description="being written", boolean=True)
    def is_locked(self, conversation: Conversation) -> bool:
        return conversation.locked_until is not None and conversation.locked_until > timezone.now()

    @admin.display(description="items")
    def items(self, conversation: Conversation) -> SafeString:
        """As indented JSON, escaped: it is what strangers wrote."""
        items = conversations.items_from(conversation.pk, 0, conversation.length)
        text = json.dumps(items, indent=2, ensure_ascii=False)
        return format_html('<pre class="responses-ws-content">{}</pre>', text)
