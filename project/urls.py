from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("v1/", include("responses_ws.urls")),
    path("admin/", admin.site.urls),
    path("", include("responses_ws.monitoring")),
    # For clients whose base URL was given without the version. Last: it takes only what nothing else does.
    path("", include(("responses_ws.urls", "responses_ws"), namespace="unversioned")),
]
