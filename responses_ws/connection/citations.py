"""Where a text names the pages that a search has found."""

import re
from collections.abc import Mapping
from typing import Any

Annotation = dict[str, Any]

# What would make a longer URL of it: another page.
_NOT_BEHIND = r"(?![\w/?&=%#~+-]|\.\w)"


def citations(text: str, sources: Mapping[str, str]) -> list[Annotation]:
    """``url_citation`` annotations, in order: of the URLs that the model has written itself, and no others.

    ``sources``: title by URL. Positions count characters; ``text[start_index:end_index]`` is the URL.
    """
    if not sources:
        return []
    longest_first = sorted(sources, key=len, reverse=True)
    pattern = "|".join(f"{re.escape(url)}{_NOT_BEHIND}" for url in longest_first)
    return [
        {
            "type": "url_citation",
            "start_index": match.start(),
            "end_index": match.end(),
            "url": match[0],
            "title": sources[match[0]],
        }
        for match in re.finditer(pattern, text)
    ]
