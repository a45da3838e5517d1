"""Health and metrics of a process that serves nothing else."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from django.http import Http404, HttpRequest, HttpResponse

from responses_ws.transports import monitoring

VIEWS = {"/healthz": monitoring.healthz, "/readyz": monitoring.readyz, "/metrics": monitoring.metrics}


async def listen(host: str, port: int) -> web.AppRunner:
    """Answer there from now on, as `responses_ws.monitoring` does in a web server. ``cleanup`` what is returned."""
    application = web.Application()
    application.router.add_routes([web.get(path, _asking(view)) for path, view in VIEWS.items()])
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


def _asking(
    view: Callable[[HttpRequest], Awaitable[HttpResponse]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(asked: web.Request) -> web.Response:
        request = HttpRequest()
        request.META["HTTP_AUTHORIZATION"] = asked.headers.get("Authorization", "")
        try:
            given = await view(request)
        except Http404:
            return web.Response(status=404)
        return web.Response(status=given.status_code, body=given.content, headers=dict(given.items()))

    return answer
