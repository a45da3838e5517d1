"""The process of an embedded engine: ``python llama_child.py``, told by its parent through standard input.

The first line is a JSON object: ``model`` (path of a GGUF file), ``sha256`` (its digest, or null to take it as it
is), ``server`` (path of a ``llama-server`` to run, or null for the one in xllamacpp), ``socket`` (path to listen on, in
a folder that is removed at the end), ``api_key``, ``threads``, ``parallel``, ``context_tokens``, ``cache_ram_mib``,
``chat_template`` (or null for the model's own). Standard input then stays open as long as the parent lives; its end
is ours, however the parent went.

Run as a file: it imports nothing of the package, so Django need not be there.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from typing import Any

# A cancel is seen between batches: on a CPU 64 tokens are about a second.
BATCH_TOKENS = 64


def main() -> None:
    told = json.loads(sys.stdin.readline())
    if told["sha256"] is not None:
        with open(told["model"], "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != told["sha256"]:
            sys.exit(f"{told['model']} is not the file it should be: its sha256 is {found}")
    code = 0
    if told["server"] is not None:
        code = beside(told)
    else:
        server = within(told)
        while server and sys.stdin.readline():
            pass
    # A parent that was killed cannot tidy up.
    shutil.rmtree(os.path.dirname(told["socket"]), ignore_errors=True)
    # Not by way of the server's own end: it would wait for answers that nobody reads any more.
    os._exit(code)


def within(told: dict[str, Any]) -> Any:
    """The server of xllamacpp, in this process."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = told["model"]
    params.hostnames = [told["socket"]]
    params.api_keys = [told["api_key"]]
    params.n_parallel = told["parallel"]
    params.n_ctx = told["context_tokens"]
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = told["threads"]
    # The default of 8 GiB is not for a process beside a web server.
    params.cache_ram_mib = told["cache_ram_mib"]
    params.warmup = False
    params.use_jinja = True
    params.ui = False
    if told["chat_template"] is not None:
        params.chat_template = told["chat_template"]
    return xllamacpp.Server(params)


def beside(told: dict[str, Any]) -> int:
    """Runs another server until it ends, or our parent has. Returns its exit code."""
    given = {
        "--model": told["model"],
        "--host": told["socket"],
        "--parallel": told["parallel"],
        "--ctx-size": told["context_tokens"],
        "--batch-size": BATCH_TOKENS,
        "--ubatch-size": BATCH_TOKENS,
        "--threads": told["threads"],
        "--cache-ram": told["cache_ram_mib"],
    }
    if told["chat_template"] is not None:
        given["--chat-template"] = told["chat_template"]
    command = [told["server"], "--no-warmup", "--jinja", *(str(word) for pair in given.items() for word in pair)]
    # Not as an argument: those can be read by all users of the machine.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, "LLAMA_API_KEY": told["api_key"]})

    def end_with_parent() -> None:
        while sys.stdin.readline():
            pass
        server.kill()

    threading.Thread(target=end_with_parent, daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    main()
