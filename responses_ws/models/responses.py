"""Stored responses: items are rows of a chain, a response is a place in it."""

from datetime import datetime

from django.db import models
from django.utils import timezone

from .accounts import Project


class Chain(models.Model):
    """A run of items that several responses share.

    A response that continues the newest one appends to its chain; one that continues an older one (a fork) starts
    a chain of its own whose ``path`` says where the past is. Positions go on counting in a fork, so one query with
    one range per path entry loads any context in order.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    root = models.UUIDField(db_index=True, editable=False, help_text="The chain that all of this tree began with.")
    path = models.JSONField(
        default=list, editable=False, help_text="[[chain id, cut], …], oldest first: items of that chain below cut."
    )
    length = models.PositiveIntegerField(default=0, help_text="Position after the last item.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return str(self.id)


class StoredItem(models.Model):
    """One item of a chain, in its wire form."""

    chain = models.ForeignKey(Chain, on_delete=models.CASCADE, related_name="items")
    position = models.PositiveIntegerField()
    item_id = models.CharField(max_length=128, db_index=True)
    body = models.TextField(help_text="The item as JSON, byte for byte as it went over the wire.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=("chain", "position"), name="responses_ws_item_position")]

    def __str__(self) -> str:
        return f"{self.item_id} at {self.position}"


class StoredResponseQuerySet(models.QuerySet["StoredResponse"]):
    def of(self, project_id: int) -> "StoredResponseQuerySet":
        """What this project can see: its own, neither deleted nor expired."""
        return self.filter(project_id=project_id, deleted_at=None, expires_at__gt=timezone.now())


class StoredResponse(models.Model):
    """A finished response with the context that led to it."""

    id = models.CharField(primary_key=True, max_length=128, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="responses")
    chain = models.ForeignKey(Chain, on_delete=models.CASCADE, related_name="responses")
    input_end = models.PositiveIntegerField(help_text="Items below this position are the context it was made from.")
    end = models.PositiveIntegerField(help_text="Items from input_end to here are its output.")
    previous_response_id = models.CharField(max_length=128, blank=True)
    model = models.CharField(max_length=200)
    status = models.CharField(max_length=20)
    body = models.TextField(help_text="The Response object as JSON with an empty output; its output is items.")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    expires_at = models.DateTimeField(db_index=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = StoredResponseQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        indexes = [models.Index(fields=("project", "-created_at"), name="responses_ws_resp_recent")]
        permissions = [("view_content", "Can see what was said in responses")]

    def __str__(self) -> str:
        return self.id

    @property
    def is_expired(self) -> bool:
        return self.expires_at <= datetime.now(tz=self.expires_at.tzinfo)
