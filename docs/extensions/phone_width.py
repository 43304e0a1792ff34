"""Measures how wide the pages of a built site are on a phone.

    python docs/extensions/phone_width.py docs/_build/html

The command needs Chromium. It prints the pages that are wider than the screen, and ends with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WIDTH = 390  # CSS pixels
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MEASURE = "phone-width.html"  # is served, and no file
HARNESS = """<!doctype html><body><pre id="found">running</pre><script>
const pages = %s, found = {}, frame = document.createElement("iframe");
frame.style = "width: %dpx; height: 800px; border: 0";
document.body.append(frame);
const next = () => {
  const page = pages.pop();
  if (!page) { document.getElementById("found").textContent = JSON.stringify(found); return; }
  frame.onload = () => setTimeout(() => {
    found[page] = frame.contentDocument.documentElement.scrollWidth;
    next();
  }, 200);
  frame.src = page;
};
next();
</script>"""


def widths(site: Path, browser: str, pages: list[str], width: int = WIDTH) -> dict[str, int]:
    """The width of each page in CSS pixels, on a screen of the given width."""
    harness = (HARNESS % (json.dumps(pages[::-1]), width)).encode()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != f"/{MEASURE}":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(harness)
            return None

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        budget = f"--virtual-time-budget={2000 + 3000 * len(pages)}"
        address = f"http://127.0.0.1:{server.server_address[1]}/{MEASURE}"
        done = subprocess.run([browser, *options, budget, address], capture_output=True, text=True, timeout=1800)
        server.shutdown()
    found = re.search(r'<pre id="found">(\{.*?\})</pre>', done.stdout)
    if not found:
        raise SystemExit(f"{browser} must print the widths, got {done.stdout[:300]!r} {done.stderr[-300:]!r}")
    return {str(page): int(value) for page, value in json.loads(found[1]).items()}


def pages_of(site: Path) -> list[str]:
    """The pages of a site, without the pages of source code, which are wide and scroll."""
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    return [page for page in pages if not page.startswith(("_modules", "_static", "_sources"))]


def main() -> int:
    """Measure all pages, some at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder of a built site")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"of the screen in CSS pixels; {WIDTH} by default")
    parser.add_argument("--only", default="", help="beginning of the names of pages, e.g. howto")
    args = parser.parse_args()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"one of {', '.join(BROWSERS)} must be installed, found none. Install Chromium.")
    pages = [page for page in pages_of(args.site) if page.startswith(args.only)]
    found: dict[str, int] = {}
    for start in range(0, len(pages), 40):
        found |= widths(args.site, browser, pages[start : start + 40], args.width)
        print(f"{len(found)} of {len(pages)} pages", file=sys.stderr)
    wide = {page: width for page, width in found.items() if width > args.width}
    for page, width in sorted(wide.items(), key=lambda item: -item[1]):
        print(f"{width} px  {page}")
    print(f"{len(wide)} of {len(found)} pages are wider than {args.width} px")
    return 1 if wide or not found else 0


if __name__ == "__main__":
    sys.exit(main())
