"""The browser of these tests: whichever Chromium is on the machine. Nothing is downloaded."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Root needs --no-sandbox; containers have a small /dev/shm. The rest keeps it from calling home: what a page asks for
# outside of the loopback has no address.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def found_chromium() -> str | None:
    """The path of ``$CHROMIUM``, or of a Chromium on the PATH; None where there is none."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None)
