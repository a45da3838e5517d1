"""What machines ask of a server: ``path("", include("responses_ws.monitoring"))``, at the root of the host project."""

from django.urls import path

from responses_ws.transports import monitoring

urlpatterns = [
    path("healthz", monitoring.healthz),
    path("readyz", monitoring.readyz),
    path("metrics", monitoring.metrics),
]
