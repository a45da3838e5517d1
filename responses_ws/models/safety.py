"""What may not pass, and what was found: rules, and flags for people to look at."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils import timezone

from .accounts import ApiKey, Project

MAX_PATTERN_CHARACTERS = 64 * 1024
"""Of one rule: some thousand words of a block list."""


class Action(models.TextChoices):
    """From the mildest to the strictest."""

    FLAG = "flag"
    REDACT = "redact"
    REFUSE = "refuse"


class SafetyRuleQuerySet(models.QuerySet["SafetyRule"]):
    def in_force(self) -> "SafetyRuleQuerySet":
        return self.filter(is_enabled=True)


class SafetyRule(models.Model):
    """Something that the rules classifier looks for. Processes hold the rules in memory."""

    class Kind(models.TextChoices):
        PATTERN = "pattern", "regular expression"
        WORDS = "words", "block list"
        SECRETS = "secrets", "secrets and keys"

    class Scope(models.TextChoices):
        INPUT = "input"
        OUTPUT = "output"
        BOTH = "both"

    name = models.CharField(max_length=100, unique=True, help_text="The category of its flags.")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    pattern = models.TextField(
        blank=True,
        max_length=MAX_PATTERN_CHARACTERS,
        help_text="A regular expression in RE2's syntax, or words and phrases, one a line, whatever their case; "
        "secrets and keys need none.",
    )
    action = models.CharField(max_length=10, choices=Action.choices, default=Action.FLAG)
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.BOTH)
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.CASCADE, related_name="+", help_text="Empty: all projects."
    )
    is_enabled = models.BooleanField("enabled", default=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = SafetyRuleQuerySet.as_manager()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if self.kind == self.Kind.SECRETS and self.pattern.strip():
            raise ValidationError({"pattern": "Secrets and keys are built in: leave this empty."})
        if self.kind != self.Kind.SECRETS and not self.pattern.strip():
            raise ValidationError({"pattern": "This field is required."})


class FlagQuerySet(models.QuerySet["Flag"]):
    def open(self) -> "FlagQuerySet":
        """Those that nobody has looked at."""
        return self.filter(state=Flag.State.OPEN)

    def raise_all(self, flags: "list[Flag]") -> None:
        """Add these; one that is there already tells what was done in the end."""
        self.bulk_create(
            flags,
            update_conflicts=True,
            unique_fields=("response_id", "side", "classifier", "category"),
            update_fields=("action", "score"),
        )

    def review(self, state: str, user: Any) -> int:
        """Confirm or dismiss those that are open. Returns how many; who was first stays."""
        return self.open().update(state=state, reviewed_by=user, reviewed_at=timezone.now())

    def forget(self, response_ids: Collection[str]) -> int:
        """Of these responses nothing that was said may be left. Returns how many."""
        return self.filter(response_id__in=response_ids).exclude(excerpt="").update(excerpt="")

    def forget_before(self, when: datetime) -> int:
        """What was said longer ago is not kept any longer. Returns how many."""
        return self.filter(created_at__lte=when).exclude(excerpt="").update(excerpt="")


class Flag(models.Model):
    """Something that a classifier has found: one row a response, side, classifier and category."""

    class State(models.TextChoices):
        OPEN = "open"
        CONFIRMED = "confirmed"
        DISMISSED = "dismissed"

    class Side(models.TextChoices):
        INPUT = "input"
        OUTPUT = "output"

    response_id = models.CharField(max_length=128, help_text="Or the id of the conversation that it was added to.")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="flags")
    api_key = models.ForeignKey(ApiKey, verbose_name="API key", null=True, on_delete=models.SET_NULL, related_name="+")
    model = models.CharField(max_length=200, blank=True)
    side = models.CharField(max_length=10, choices=Side.choices)
    classifier = models.CharField(max_length=100)
    category = models.CharField(max_length=100)
    action = models.CharField(max_length=10, choices=Action.choices, help_text="What was done about it.")
    score = models.FloatField(null=True)
    excerpt = models.TextField(
        blank=True, help_text="Only where the project keeps excerpts and the response is stored."
    )
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    state = models.CharField(max_length=10, choices=State.choices, default=State.OPEN)
    reviewed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    reviewed_at = models.DateTimeField(null=True, blank=True)

    objects = FlagQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "-pk")
        permissions = [("review_flag", "Can confirm and dismiss flags")]
        indexes = [models.Index(fields=("state", "-created_at"), name="responses_ws_flag_queue")]
        constraints = [
            models.UniqueConstraint(
                fields=("response_id", "side", "classifier", "category"), name="responses_ws_flag_once"
            ),
            models.CheckConstraint(
                condition=Q(state="open", reviewed_at=None) | (~Q(state="open") & ~Q(reviewed_at=None)),
                name="responses_ws_flag_reviewed",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.category} in {self.side} of {self.response_id}"
