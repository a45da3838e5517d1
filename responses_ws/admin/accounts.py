"""Organisations, projects and keys."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from responses_ws.connection.rates import Rates
from responses_ws.models import Account, ApiKey, Organization, Project, WebSocketShare
from responses_ws.runtime.bus import nudge

from .base import ModelAdmin, ProjectFilter, Textarea
from .formats import dollars
from .secrets import SecretAdmin, UsableFilter

RATES = Rates.__struct_fields__
"""Of a project or a key; empty where the next wider one has the say."""


@admin.register(Organization)
class OrganizationAdmin(ModelAdmin):
    list_display = ("name", "project_count", "owes", "created_at")
    search_fields = ("name",)
    readonly_fields = ("created_at",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        owed = Account.objects.owed_by_each()
        return super().get_queryset(request).annotate(projects_counted=Count("projects"), owed_nano=owed)

    @admin.display(description="projects", ordering="projects_counted")
    def project_count(self, organization: Organization) -> int:
        return organization.projects_counted

    @admin.display(description="owes", ordering="owed_nano")
    def owes(self, organization: Organization) -> str:
        return dollars(organization.owed_nano)


@admin.register(Project)
class ProjectAdmin(ModelAdmin):
    list_display = ("name", "organization", "key_count", "created_at")
    list_filter = ("organization",)
    list_select_related = ("organization",)
    search_fields = ("name", "organization__name")
    fields = ("organization", "name", *RATES, "keeps_excerpts", "zero_retention", "sealed_fallback", "created_at")
    readonly_fields = ("created_at",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Project]:
        return super().get_queryset(request).annotate(keys_counted=Count("api_keys"))

    def get_readonly_fields(self, request: HttpRequest, obj: Project | None = None) -> tuple[str, ...]:
        # Its usage is booked on the organisation; moving the project would leave the books behind.
        return self.readonly_fields if obj is None else ("organization", *self.readonly_fields)

    def save_model(self, request: HttpRequest, obj: Project, form: forms.ModelForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(nudge)

    @admin.display(description="API keys", ordering="keys_counted")
    def key_count(self, project: Project) -> int:
        return project.keys_counted


@admin.register(WebSocketShare)
class WebSocketShareAdmin(ModelAdmin):
    """Heard by every server within half a second."""

    list_display = ("__str__", "project", "percent")
    list_select_related = ("project__organization",)
    autocomplete_fields = ("project",)

    def save_model(self, request: HttpRequest, obj: WebSocketShare, form: forms.ModelForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(nudge)

    def delete_model(self, request: HttpRequest, obj: WebSocketShare) -> None:
        super().delete_model(request, obj)
        transaction.on_commit(nudge)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        # One by one: each tells.
        for share in queryset:
            self.delete_model(request, share)


class LinesField(forms.CharField):
    """A list of strings, edited one a line."""

    widget = Textarea(attrs={"rows": 4, "cols": 40})

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:
        return [line.strip() for line in (super().to_python(value) or "").splitlines() if line.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (initial or []) != self.to_python(data)


class ApiKeyForm(forms.ModelForm):
    allowed_models = LinesField(required=False, help_text="Model names, one a line; empty means all.")

    class Meta:
        model = ApiKey
        fields = ("project", "name", "allowed_models", *RATES, "zero_retention", "expires_at")


@admin.register(ApiKey)
class ApiKeyAdmin(SecretAdmin):
    """Keys are also limited here."""

    kind = "proj"
    owner = "project"
    own_fields = ("project", "name", "allowed_models", *RATES, "zero_retention", "expires_at")
    form = ApiKeyForm
    list_display = ("name", "project", "redacted", "state", "expires_at", "last_used_at", "created_at")
    list_filter = (UsableFilter, "project__organization", ("project", ProjectFilter))
    list_select_related = ("project__organization",)
    search_fields = ("name", "last4", "project__name")
    autocomplete_fields = ("project",)
