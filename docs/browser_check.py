"""Opens the built site in Chromium, as a reader does, on a computer and on a phone.

    python docs/browser_check.py

It needs the programs `chromium` and `chromedriver`, and the site in docs/_build/html.
On each page, at both widths: there is a heading, all pictures load, the page is not
wider than the screen, and scripts log no errors. Then the search must find
`seq_lengths`. The command prints each fault and ends with 1 if there are any. `--shots
FOLDER` also writes pictures of the pages.
"""

import argparse
import base64
import http.server
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

SITE = Path(__file__).resolve().parent / "_build" / "html"
WIDTHS = {"computer": 1280, "phone": 390}
CHROMIUM = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
]
STATE = """
const images = [...document.images];
images.forEach((image) => { image.loading = "eager"; });
const broken = images.filter((i) => i.complete && i.naturalWidth === 0);
return {
  heading: document.querySelector("h1")?.innerText ?? "",
  waiting: images.some((i) => !i.complete),
  broken: broken.map((i) => i.src),
  width: document.documentElement.scrollWidth,
};
"""
# The number of pages that the search has found, once it has ended.
FOUND = """
const text = document.querySelector(".search-summary")?.innerText ?? "";
return Number((text.match(/(\\d+) page/) ?? [0, 0])[1]);
"""


class Browser:
    """A session of chromedriver, by the WebDriver protocol."""

    def __init__(self, port: int, profile: str):
        self.base = f"http://127.0.0.1:{port}/session"
        # Phones are narrower than a window can be, so the browser emulates one.
        options = {"args": [*CHROMIUM, f"--user-data-dir={profile}"]}
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._send("", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/{session['sessionId']}"

    def _send(self, path: str, body: dict | None = None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def resize(self, width: int) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1}
        command = "Emulation.setDeviceMetricsOverride"
        params = {**metrics, "mobile": width < 600}
        self._send("/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, address: str) -> None:
        self._send("/url", {"url": address})

    def run(self, script: str):
        return self._send("/execute/sync", {"script": script, "args": []})

    def errors(self) -> list[str]:
        logged = self._send("/se/log", {"type": "browser"})
        return [entry["message"] for entry in logged if entry["level"] == "SEVERE"]

    def picture(self) -> bytes:
        return base64.b64decode(self._send("/screenshot"))


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves the site without a log."""

    def __init__(self, *args):
        super().__init__(*args, directory=str(SITE))

    def log_message(self, *args):
        pass


def until(condition, seconds: float = 20):
    """Returns the first true value of a condition, or its last one."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def faults(browser: Browser, address: str, width: int) -> list[str]:
    """Opens a page and returns what is wrong with it."""
    browser.open(address)
    until(lambda: not browser.run(STATE)["waiting"])
    state = browser.run(STATE)
    found = [f"picture does not load: {source}" for source in state["broken"]]
    errors = [error for error in browser.errors() if "favicon" not in error]
    found += [f"error: {message}" for message in errors]
    if not state["heading"]:
        found.append("no heading")
    if state["width"] > width:
        found.append(f"is {state['width']} pixels wide")
    return found


def check(browser: Browser, root: str, shots: Path | None) -> int:
    """Checks all pages and the search; returns the number of faults."""
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    pages = [page for page in pages if not page.startswith(("_", "search"))]
    count = 0
    for name, width in WIDTHS.items():
        browser.resize(width)
        for page in pages:
            for fault in faults(browser, f"{root}/{page}", width):
                count += 1
                print(f"{page} on a {name}: {fault}")
            if shots is not None:
                file = shots / f"{page.replace('/', '-')}-{name}.png"
                file.write_bytes(browser.picture())
    browser.open(f"{root}/search.html?q=seq_lengths")
    hits = until(lambda: browser.run(FOUND))
    print(f"{len(pages)} pages, {count} faults; search finds seq_lengths on {hits}")
    return count + (not hits)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the site in Chromium.")
    parser.add_argument("--shots", type=Path, help="folder for pictures of the pages")
    shots = parser.parse_args().shots
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL
    )
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            time.sleep(1)
            browser = Browser(port, profile)
            root = f"http://127.0.0.1:{server.server_port}"
            return int(check(browser, root, shots) > 0)
    finally:
        driver.terminate()


if __name__ == "__main__":
    sys.exit(main())
