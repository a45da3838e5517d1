"""What the pages of the office have in common: with django-unfold, where it is installed, or Django's own admin."""

from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.templatetags.static import static
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.module_loading import import_string
from django.utils.safestring import SafeString

from responses_ws.models import Project

HAS_UNFOLD = apps.is_installed("unfold")


def _theme(unfold: str, plain: str) -> Any:
    """A page whose class is not the theme's own looks broken in it, so all of them are chosen here."""
    return import_string(f"unfold.{unfold}" if HAS_UNFOLD else f"django.{plain}")


ModelAdmin: Any = _theme("admin.ModelAdmin", "contrib.admin.ModelAdmin")
TabularInline: Any = _theme("admin.TabularInline", "contrib.admin.TabularInline")
TextInput: Any = _theme("widgets.UnfoldAdminTextInputWidget", "contrib.admin.widgets.AdminTextInputWidget")
"""For fields that a form declares itself; those of the model get the theme's widgets anyway."""
Textarea: Any = _theme("widgets.UnfoldAdminTextareaWidget", "contrib.admin.widgets.AdminTextareaWidget")

MOST_COUNTED = 10_000
"""Rows of a table that others write, in its list. Who looks for older ones filters."""

OFFICE_CSS = {"all": ("responses_ws/office.css",)}


class NeverEdited:
    """Nobody adds, changes or deletes these rows here, superusers included; viewing still needs its permission."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class BoundedPaginator(Paginator):
    """Counts no further than `MOST_COUNTED` rows: of ten million, counting those of a filter takes seconds."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list.order_by().values("pk")[:MOST_COUNTED]
        return rows.count()


class ReadOnlyAdmin(NeverEdited, ModelAdmin):
    """A table that others write. Its rows are many: they are not counted twice a page."""

    show_full_result_count = False
    list_per_page = 50
    paginator = BoundedPaginator

    class Media:
        css = OFFICE_CSS

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        answer = super().changelist_view(request, extra_context)
        listed = getattr(answer, "context_data", None) or {}
        if "cl" in listed and listed["cl"].paginator.count >= MOST_COUNTED:
            # Else the number below the list would pass for that of all rows.
            listed["subtitle"] = f"The first {MOST_COUNTED:,} in this order. Filter or search for others."
        return answer

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Who may change the table has no use for that here; to see it is a right of its own.
        return request.user.has_perm(f"{self.opts.app_label}.view_{self.opts.model_name}")


class ReadOnlyInline(NeverEdited, TabularInline):
    """Rows that belong to a read-only row."""

    extra = 0
    can_delete = False


class Page(NeverEdited, ModelAdmin):
    """A page of our own where a list of rows would be: in the admin's index and menu without replacing a template.

    Its model is a proxy. Subclasses say ``permission`` and give a response from ``page``, with `render`.
    """

    permission = ""
    """``app_label.codename``: who may see it."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(self.permission)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def get_urls(self) -> list[Any]:
        # The list only: there is no row to look at, add or delete.
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [url for url in super().get_urls() if url.name == name]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self.check_permission(request)
        return self.page(request)

    def check_permission(self, request: HttpRequest) -> None:
        """Raises PermissionDenied; the first thing that views of further URLs do."""
        if not self.has_view_permission(request):
            raise PermissionDenied

    def page(self, request: HttpRequest) -> HttpResponse:
        raise NotImplementedError

    def render(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        """The template, a child of ``admin/responses_ws/page.html``, under a strict policy.

        Args:
            context: ``title`` among others.
        """
        # Tabs, links and the current entry of the menu are the theme's business.
        request.current_app = self.admin_site.name
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "has_unfold": HAS_UNFOLD}
        response = TemplateResponse(request, template, {**shared, **context})
        response.headers["Content-Security-Policy"] = content_security_policy()
        return response


def content_security_policy() -> str:
    """Of our own pages: nothing from elsewhere, nothing inline.

    unfold's Alpine evaluates the attributes of its templates, and its colours are an inline style sheet: with it,
    scripts may be evaluated, yet still none may be inline.
    """
    origin = urlsplit(static("responses_ws/office.css"))
    own = f"'self' {origin.scheme}://{origin.netloc}" if origin.netloc else "'self'"
    script, style = (" 'unsafe-eval'", " 'unsafe-inline'") if HAS_UNFOLD else ("", "")
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {own}{script}",
            f"style-src {own}{style}",
            f"img-src {own} data:",
            f"font-src {own}",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ]
    )


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
