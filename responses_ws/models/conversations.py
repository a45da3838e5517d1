"""Conversations: items that a client keeps here on purpose, and adds to with every response."""

from datetime import datetime

from django.db import models
from django.db.models import Q
from django.utils import timezone

from .accounts import Project
from .responses import Chain


class ConversationQuerySet(models.QuerySet["Conversation"]):
    def of(self, project_id: int) -> "ConversationQuerySet":
        """What this project can see: its own, not deleted."""
        return self.filter(project_id=project_id, deleted_at=None)

    def free(self, now: datetime) -> "ConversationQuerySet":
        """Those that no response is writing."""
        return self.filter(Q(locked_until=None) | Q(locked_until__lte=now))


class Conversation(models.Model):
    """A list of items with an id of its own. It does not expire."""

    id = models.CharField(primary_key=True, max_length=128, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="conversations")
    metadata = models.JSONField(default=dict, blank=True)
    length = models.PositiveIntegerField(default=0, help_text="Position of the next item; deleted ones leave gaps.")
    edits = models.PositiveIntegerField(default=0, help_text="How often items were deleted: what was read is void.")
    holder = models.CharField(max_length=128, blank=True, help_text="The turn that is writing it.")
    locked_until = models.DateTimeField(null=True, blank=True, help_text="When that turn counts as dead.")
    chain = models.ForeignKey(Chain, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    chain_end = models.PositiveIntegerField(
        default=0, help_text="So many of its first items are stored in that chain, with the responses made from them."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        indexes = [models.Index(fields=("project", "-created_at"), name="responses_ws_conv_recent")]

    def __str__(self) -> str:
        return self.id


class ConversationItem(models.Model):
    """One item of a conversation, in its wire form. It outlives its conversation, as references to it do."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="items")
    position = models.PositiveIntegerField()
    item_id = models.CharField(max_length=128, db_index=True)
    body = models.TextField(help_text="The item as JSON, byte for byte as it went over the wire.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("conversation", "position"), name="responses_ws_conv_item_position")
        ]

    def __str__(self) -> str:
        return f"{self.item_id} at {self.position}"
