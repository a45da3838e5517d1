from django.contrib import admin
from django.urls import include, path

from .health import readiness

urlpatterns = [
    path("v1/", include("responses_ws.urls")),
    path("admin/", admin.site.urls),
    path("healthz", readiness),
]
