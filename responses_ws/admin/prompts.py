"""Prompt templates and their versions."""

import difflib
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from responses_ws.models import PromptTemplate, PromptVersion

from .base import OFFICE_CSS, ModelAdmin, ProjectFilter, link_to


class PromptTemplateForm(forms.ModelForm):
    class Meta:
        model = PromptTemplate
        fields = ("project", "name", "default_version")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "default_version" in self.fields:
            # A request is never answered with a draft, nor with somebody else's prompt.
            published = PromptVersion.objects.filter(template=self.instance.pk).exclude(published_at=None)
            self.fields["default_version"].queryset = published.select_related("template")


@admin.register(PromptTemplate)
class PromptTemplateAdmin(ModelAdmin):
    """What requests name by id. A template that was ever published stays: responses name it."""

    form = PromptTemplateForm
    list_display = ("name", "id", "project", "served", "created_at")
    list_filter = ("project__organization", ("project", ProjectFilter))
    list_select_related = ("project__organization", "default_version")
    search_fields = ("name", "pk__startswith")
    autocomplete_fields = ("project",)
    readonly_fields = ("id", "versions", "created_at")

    class Media:
        css = OFFICE_CSS

    def get_fields(self, request: HttpRequest, obj: PromptTemplate | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("project", "name")
        return ("id", "project", "name", "default_version", "versions", "created_at")

    def get_readonly_fields(self, request: HttpRequest, obj: PromptTemplate | None = None) -> tuple[str, ...]:
        return () if obj is None else ("project", *self.readonly_fields)

    def has_delete_permission(self, request: HttpRequest, obj: PromptTemplate | None = None) -> bool:
        if obj is None or obj.versions.exclude(published_at=None).exists():
            return False
        return super().has_delete_permission(request, obj)

    @admin.display(description="serves")
    def served(self, template: PromptTemplate) -> str:
        return "–" if template.default_version is None else f"v{template.default_version.number}"

    @admin.display(description="versions")
    def versions(self, template: PromptTemplate) -> SafeString | str:
        rows = [
            (link_to(version), _state(version), version.note)
            for version in template.versions.select_related("template").order_by("-number")
        ]
        return format_html_join("", "{} ({}) {}<br>", rows) or "none yet"


@admin.register(PromptVersion)
class PromptVersionAdmin(ModelAdmin):
    """A draft can be changed and deleted; a published version can only be followed by another."""

    list_display = ("__str__", "project", "state", "model", "note", "published_at")
    list_filter = (
        ("published_at", admin.EmptyFieldListFilter),
        ("template__project", ProjectFilter),
    )
    list_select_related = ("template__project__organization",)
    search_fields = ("template__name", "template__pk__startswith")
    autocomplete_fields = ("template",)
    readonly_fields = ("number", "state", "variable_names", "difference", "created_at", "published_at")
    actions = ("publish",)

    class Media:
        css = OFFICE_CSS

    def get_fields(self, request: HttpRequest, obj: PromptVersion | None = None) -> tuple[str, ...]:
        fields = ("template", "note", "text", "model", "defaults")
        return fields if obj is None else (*fields, *self.readonly_fields)

    def get_readonly_fields(self, request: HttpRequest, obj: PromptVersion | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        if obj.is_published:
            return ("template", "note", "text", "model", "defaults", *self.readonly_fields)
        return ("template", *self.readonly_fields)

    def has_delete_permission(self, request: HttpRequest, obj: PromptVersion | None = None) -> bool:
        # Not in bulk either: among many there may be published ones.
        return obj is not None and not obj.is_published and super().has_delete_permission(request, obj)

    @admin.display(description="project", ordering="template__project")
    def project(self, version: PromptVersion) -> str:
        return str(version.template.project)

    @admin.display(description="state")
    def state(self, version: PromptVersion) -> str:
        return _state(version)

    @admin.display(description="variables")
    def variable_names(self, version: PromptVersion) -> str:
        return ", ".join(version.variables) or "none"

    @admin.display(description="against the version before")
    def difference(self, version: PromptVersion) -> SafeString | str:
        before = PromptVersion.objects.filter(template=version.template, number__lt=version.number).first()
        if before is None:
            return "the first"
        lines = difflib.unified_diff(
            before.text.splitlines(), version.text.splitlines(), str(before), str(version), lineterm=""
        )
        return format_html('<pre class="responses-ws-content">{}</pre>', "\n".join(lines) or "the same text")

    @admin.action(description="Publish selected versions", permissions=["change"])
    def publish(self, request: HttpRequest, queryset: Any) -> None:
        for version in queryset.filter(published_at=None).select_related("template"):
            self.log_change(request, version, "Published.")
        messages.success(request, f"{queryset.publish()} published.")


def _state(version: PromptVersion) -> str:
    return "published" if version.is_published else "draft"
