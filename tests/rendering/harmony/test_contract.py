"""Harmony keeps the contract of renderers."""

from collections.abc import Sequence

import pytest

pytest.importorskip("openai_harmony", reason="the extra `harmony` is not installed")
pytest.importorskip("bpe_openai", reason="the extra `harmony` is not installed")

from responses_ws.rendering.harmony.renderer import HarmonyRenderer
from responses_ws.testing import RendererContract
from responses_ws.testing.rendering import Message


class TestHarmony(RendererContract):
    reasoning = "Let me think."

    @pytest.fixture(autouse=True)
    def _take(self, renderer: HarmonyRenderer) -> None:
        self._renderer = renderer

    def renderer(self) -> HarmonyRenderer:
        return self._renderer

    def said(self, message: Message) -> Sequence[int]:
        controls = self._renderer.controls
        ids = self._renderer.message(message, keeps_analysis=True)[len(controls.opening) :]
        return ids if ids[-1] == controls.call else [*ids[:-1], controls.answered]


class TestHarmonyThatDoesNotThink(TestHarmony):
    reasoning = ""
