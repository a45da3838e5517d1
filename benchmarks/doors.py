"""The demo project for benchmarks, with doors that do less: none of Django, none of DRF, none of ours.

They read the body and answer with as many bytes as an empty response of ours has.
"""

from django.core.asgi import get_asgi_application

get_asgi_application()

from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.csrf import csrf_exempt  # noqa: E402

from project.asgi import application as project  # noqa: E402
from project.urls import urlpatterns as project_urls  # noqa: E402
from responses_ws.transports.base import ApiView  # noqa: E402
from responses_ws.transports.bodies import read_body  # noqa: E402
from responses_ws.transports.exceptions import json_response  # noqa: E402

ANSWER = b'{"text":"%b"}' % (b"x" * 1000)
HEAD = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def application(scope, receive, send) -> None:
    """The project's, but for ``/bare/``: what uvicorn takes alone."""
    if scope["type"] != "http" or scope["path"] != "/bare/":
        await project(scope, receive, send)
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEAD})
    await send({"type": "http.response.body", "body": ANSWER})


@csrf_exempt
def django_view(request: HttpRequest) -> HttpResponse:
    """Django's request path."""
    read_body(request)
    return HttpResponse(ANSWER, content_type="application/json")


class EmptyView(ApiView):
    """The same with DRF's, as our views have it."""

    def post(self, request: HttpRequest) -> HttpResponse:
        read_body(request)
        return json_response({"text": "x" * 1000})


urlpatterns = [path("django/", django_view), path("drf/", EmptyView.as_view()), *project_urls]
