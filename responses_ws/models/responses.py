"""Stored responses: items are rows of a chain, a response is a place in it."""

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q
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

    def gone(self) -> "StoredResponseQuerySet":
        """Deleted or expired: nobody can see them any more."""
        return self.filter(~Q(deleted_at=None) | Q(expires_at__lte=timezone.now()))

    def unwanted(self, response_ids: Collection[str]) -> "StoredResponseQuerySet":
        """Those of these whose client has cancelled or deleted them."""
        return self.filter(pk__in=response_ids).exclude(cancel_requested_at=None, deleted_at=None)


class StoredResponse(models.Model):
    """A response with the context that led to it: finished, or running in the background."""

    UNFINISHED = ("queued", "in_progress")

    id = models.CharField(primary_key=True, max_length=128, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="responses")
    chain = models.ForeignKey(Chain, on_delete=models.CASCADE, related_name="responses")
    input_end = models.PositiveIntegerField(help_text="Items below this position are the context it was made from.")
    end = models.PositiveIntegerField(help_text="Items from input_end to here are its output.")
    previous_response_id = models.CharField(max_length=128, blank=True)
    model = models.CharField(max_length=200)
    status = models.CharField(max_length=20, help_text="Of the Response object: it may say more than the usage record.")
    body = models.TextField(help_text="The Response object as JSON with an empty output; its output is items.")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    expires_at = models.DateTimeField(db_index=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(
        null=True, blank=True, help_text="For the process that runs it: a background response is no longer wanted."
    )

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


class ResponseEventsQuerySet(models.QuerySet["ResponseEvents"]):
    def of(self, project_id: int, response_id: str) -> "ResponseEventsQuerySet":
        """The events of a response of this project, in order."""
        return self.filter(project_id=project_id, response_id=response_id).order_by("first_number")

    def outdated(self, written_before: datetime) -> "ResponseEventsQuerySet":
        """Of responses that are gone, and those of ended ones that were written before this."""
        ended = ~Q(response__status__in=StoredResponse.UNFINISHED) & Q(written_at__lt=written_before)
        return self.filter(ended | Q(response__in=StoredResponse.objects.gone()))


class ResponseEvents(models.Model):
    """Some events of a response that was asked for in the background and as a stream, for those who come later.

    The terminal one is not among them: it is made from the stored response.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    response = models.ForeignKey(StoredResponse, on_delete=models.CASCADE, related_name="events")
    first_number = models.PositiveIntegerField(help_text="The sequence_number of the first of them.")
    count = models.PositiveIntegerField()
    frames = models.TextField(help_text="Events as JSON, byte for byte as they went over the wire, one a line.")
    written_at = models.DateTimeField(default=timezone.now, db_index=True)

    objects = ResponseEventsQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=("response", "first_number"), name="responses_ws_event_number")]

    def __str__(self) -> str:
        return f"{self.response_id} from {self.first_number}"


class IdempotencyKeyQuerySet(models.QuerySet["IdempotencyKey"]):
    def expired(self) -> "IdempotencyKeyQuerySet":
        return self.filter(created_at__lte=timezone.now() - IdempotencyKey.KEPT)


class IdempotencyKey(models.Model):
    """An ``Idempotency-Key`` that a client has used, and the one response that belongs to it.

    What became of the response is not noted here: its usage record says so. Of the request there is a keyed digest.
    """

    KEPT = timedelta(hours=24)

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    scope = models.CharField(max_length=40, help_text="Who used it: an API key, or the project where there is none.")
    key = models.CharField(max_length=255)
    body_digest = models.BinaryField(max_length=32)
    response_id = models.CharField(max_length=128)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    objects = IdempotencyKeyQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=("scope", "key"), name="responses_ws_idempotency_key")]

    def __str__(self) -> str:
        return f"{self.scope} {self.key}"
