import gzip
import os
from pathlib import Path

import pytest

pytest.importorskip("openai_harmony", reason="the extra `harmony` is not installed")
pytest.importorskip("bpe_openai", reason="the extra `harmony` is not installed")

from responses_ws.rendering.harmony.renderer import HarmonyRenderer
from responses_ws.runtime import renderers
from responses_ws.runtime.harmony import packaged_vocabulary

OPTIONS = {"CLASS": "responses_ws.runtime.harmony.Harmony"}


def test_the_renderer_is_made_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", "elsewhere")
    path = tmp_path / "o200k_base.tiktoken"
    path.write_bytes(gzip.decompress(packaged_vocabulary().read_bytes()))

    for options in (OPTIONS, {**OPTIONS, "VOCABULARY": str(path)}):
        assert isinstance(renderers.load(options), HarmonyRenderer)
    assert os.environ["TIKTOKEN_ENCODINGS_BASE"] == "elsewhere"


@pytest.mark.parametrize("given", [{"VOCABULARY": "/nowhere"}, {"VOCABULARY": __file__}, {"FOO": 1}])
def test_a_wrong_option_is_named(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        renderers.load({**OPTIONS, **given})
