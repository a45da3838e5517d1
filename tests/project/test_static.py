"""The demo project's static files, and what else comes through the same door."""

import pytest

from project.static import serve_static


async def django(scope, receive, send):
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"by Django"})


@pytest.fixture
def ask(tmp_path):
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin" / "base.css").write_text("body {}")
    (tmp_path.parent / "secret.txt").write_text("not for everybody")
    served = serve_static(django, root=tmp_path, prefix="/static/")

    async def ask(path, method="GET", **headers):
        sent = []

        async def send(message):
            sent.append(message)

        encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await served({"type": "http", "path": path, "method": method, "headers": encoded}, None, send)
        start, body = sent
        return start["status"], dict(start["headers"]), body["body"]

    return ask


async def test_a_file_is_served_with_its_type(ask):
    status, headers, body = await ask("/static/admin/base.css")

    assert (status, body) == (200, b"body {}")
    assert headers[b"content-type"] == b'text/css; charset="utf-8"'


async def test_a_browser_that_has_it_is_told_so(ask):
    _, headers, _ = await ask("/static/admin/base.css")

    status, _, body = await ask("/static/admin/base.css", if_none_match=headers[b"etag"].decode())

    assert (status, body) == (304, b"")


async def test_head_has_no_body(ask):
    status, headers, body = await ask("/static/admin/base.css", "HEAD")

    assert (status, headers[b"content-length"], body) == (200, b"7", b"")


@pytest.mark.parametrize("path", ["/static/", "/static/nothing.css", "/static/admin", "/static/../secret.txt"])
async def test_there_is_nothing_else_in_the_folder(ask, path):
    status, _, body = await ask(path)

    assert (status, body) == (404, b"Not found\n")


async def test_nothing_is_written(ask):
    status, _, _ = await ask("/static/admin/base.css", "POST")

    assert status == 405


async def test_all_other_paths_are_djangos(ask):
    assert await ask("/admin/") == (299, {}, b"by Django")
