"""Prompt templates: kept by staff, used by requests."""

import secrets
from typing import Any

import msgspec
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Max, Q
from django.utils import timezone

from responses_ws.protocol.errors import ApiError
from responses_ws.protocol.ids import make_id
from responses_ws.protocol.prompts import parse_template
from responses_ws.protocol.request import Request, check_request, invalid

from .accounts import Project

# What a request may leave to its prompt, beside the model.
DEFAULTS = (
    "max_output_tokens",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
)


def _new_id() -> str:
    return make_id("pmpt", secrets.token_bytes(24))


class PromptTemplate(models.Model):
    """A prompt that requests of its project name by id. What it says is in its versions."""

    id = models.CharField(primary_key=True, max_length=128, default=_new_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="prompts")
    name = models.CharField(max_length=200, help_text="For staff; requests use the id.")
    default_version = models.ForeignKey(
        "PromptVersion",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="What requests get that name no version.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("project", "name")
        constraints = [models.UniqueConstraint(fields=("project", "name"), name="responses_ws_prompt_name")]

    def __str__(self) -> str:
        return self.name


class PromptVersionQuerySet(models.QuerySet["PromptVersion"]):
    def served(self, project_id: int, prompt_id: str, version: str | None) -> "PromptVersion | None":
        """The published version that a request of this project means; without a number, the default one."""
        found = self.filter(template_id=prompt_id, template__project_id=project_id).exclude(published_at=None)
        if version is None:
            return found.filter(template__default_version=F("pk")).first()
        # As it is written, "1" and not "01"; larger numbers fit no column.
        if not version.isascii() or not version.isdigit() or version.startswith("0") or len(version) > 9:
            return None
        return found.filter(number=int(version)).first()

    def publish(self) -> int:
        """Publish drafts; the first version of a template becomes its default. Returns how many."""
        drafts = list(self.filter(published_at=None).select_related("template"))
        for version in drafts:
            version.published_at = timezone.now()
            version.save(update_fields=["published_at"])
            PromptTemplate.objects.filter(pk=version.template_id, default_version=None).update(default_version=version)
        return len(drafts)


class PromptVersion(models.Model):
    """One wording of a prompt. Once published it never changes: responses that were made with it name it."""

    template = models.ForeignKey(PromptTemplate, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField(editable=False)
    text = models.TextField(
        blank=True,
        help_text="Instructions; then, if you like, messages, each after a line [system], [developer], [user] or "
        "[assistant]. {{name}} stands for a variable.",
    )
    model = models.CharField(max_length=200, blank=True, help_text="For requests that name none.")
    defaults = models.JSONField(
        default=dict, blank=True, help_text=f"For requests that do not say: {', '.join(DEFAULTS)}."
    )
    note = models.CharField(max_length=200, blank=True, help_text="What is new.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    published_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = PromptVersionQuerySet.as_manager()

    class Meta:
        ordering = ("template", "-number")
        constraints = [
            models.UniqueConstraint(fields=("template", "number"), name="responses_ws_prompt_version"),
            models.CheckConstraint(condition=Q(number__gte=1), name="responses_ws_prompt_version_from_1"),
        ]

    def __str__(self) -> str:
        return f"{self.template} v{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self.number:
            newest = PromptVersion.objects.filter(template=self.template).aggregate(Max("number"))["number__max"]
            self.number = (newest or 0) + 1
        super().save(*args, **kwargs)

    @property
    def is_published(self) -> bool:
        return self.published_at is not None

    @property
    def variables(self) -> list[str]:
        """Names that a request has to give values for."""
        return parse_template(self.text).variables

    def clean(self) -> None:
        """A prompt's defaults must be good for a request: better said here than to its users."""
        try:
            check_defaults(self.defaults)
        except ApiError as error:
            raise ValidationError({"defaults": error.message}) from error


def check_defaults(defaults: Any) -> None:
    """Raises ApiError: no object, an unknown key, or a value that no request may have."""
    try:
        given = msgspec.convert(defaults, dict[str, Any])
        unknown = ", ".join(sorted(given.keys() - set(DEFAULTS)))
        if unknown:
            raise msgspec.ValidationError(f"a prompt has no default for {unknown}")
        request = msgspec.convert({"model": "any", "input": "any", **given}, Request)
    except msgspec.ValidationError as exc:
        raise invalid(exc) from exc
    check_request(request, max_tools=10_000, max_schema_bytes=10_000_000)
