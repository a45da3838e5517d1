"""What the pages of the office have in common."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import models
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_ws.models import Project

OFFICE_CSS = {"all": ("responses_ws/office.css",)}


class NeverEdited:
    """Nobody adds, changes or deletes these rows here, superusers included; viewing still needs its permission."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyAdmin(NeverEdited, admin.ModelAdmin):
    """A table that others write. Its rows are many: they are not counted twice a page."""

    show_full_result_count = False
    list_per_page = 50

    class Media:
        css = OFFICE_CSS


class ReadOnlyInline(NeverEdited, admin.TabularInline):
    """Rows that belong to a read-only row."""

    extra = 0
    can_delete = False


class ProjectFilter(admin.RelatedFieldListFilter):
    """Projects by their full name, which holds the organisation's: one query for all of them."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[tuple[int, str]]:
        return [(project.pk, str(project)) for project in Project.objects.select_related("organization")]


def link_to(instance: models.Model | None) -> SafeString | str:
    """A link to the instance's own page, under its name; a dash for none."""
    if instance is None:
        return "–"
    meta = instance._meta
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=(quote(instance.pk),))
    return format_html('<a href="{}">{}</a>', url, instance)
