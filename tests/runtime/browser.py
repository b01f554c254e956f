# SPDX-License-Identifier: MIT
"""Pages of HTML as a browser shows them."""

import contextlib
import html.parser
import socket
import subprocess
import threading

from harness import _leftovers, scratch


class Cells(html.parser.HTMLParser):
    """The text of the table cells of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.cells: list[str] = []
        self.canvases = 0
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes) -> None:
        self._in_cell = tag == "td"
        if tag == "td":
            self.cells.append("")
        self.canvases += tag == "canvas"

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data


class _Proxy:
    """Where a browser must send its requests: notes them and answers none."""

    def __init__(self):
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()
        _leftovers.append(self._listener.close)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self.requests.append(connection.recv(200).decode(errors="replace"))


def browse(chromium: str, url: str, direct: bool = False) -> tuple[str, list[str]]:
    """The page as it stands after its scripts have run, and what it asked the network for; `direct`:
    but for this host's loopback interface, that the page is served on."""
    proxy = _Proxy()
    browser = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={scratch()}",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--no-first-run", "--virtual-time-budget=5000",
         f"--proxy-server=http://127.0.0.1:{proxy.port}",
         *([] if direct else ["--proxy-bypass-list=<-loopback>"]), "--dump-dom", url],
        capture_output=True, text=True, timeout=120,
    )
    # What the browser asks for by itself is not the page's doing. It ends as soon as the page is written
    # out, and one of those that it had just connected for then says nothing.
    own = ("google", "gvt1", "chromium")
    asked = [one for one in proxy.requests if one and not any(word in one.lower() for word in own)]
    return browser.stdout, asked
