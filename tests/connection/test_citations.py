from responses_ws.connection.citations import citations

SOURCES = {"https://a.example": "A", "https://a.example/b": "B"}


def cited(text: str) -> list[tuple[str, str]]:
    return [(one["title"], text[one["start_index"] : one["end_index"]]) for one in citations(text, SOURCES)]


def test_every_url_that_was_written_is_cited_where_it_stands() -> None:
    text = "See [B](https://a.example/b), then ä https://a.example."

    assert cited(text) == [("B", "https://a.example/b"), ("A", "https://a.example")]


def test_a_longer_url_is_another_page() -> None:
    assert cited("https://a.example/bcd https://a.example/b?c https://a.example.org/") == []


def test_a_text_without_urls_cites_nothing() -> None:
    assert cited("As A says.") == []
    assert citations("https://a.example", {}) == []
