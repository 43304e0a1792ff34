"""Finds links of the built pages that lead to no page, no file or no heading.

    python docs/extensions/check_links.py docs/_build/html

Only links inside of the documentation are followed: the check needs no network.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Targets of the links of a page, and the names that links to it may have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := values.get(key))}
        target = values.get("href" if tag in ("a", "link") else "src")
        if target and tag in ("a", "img", "link", "script"):
            self.links.append(target)


def dead_links(folder: Path) -> list[str]:
    """One line for each link that leads nowhere: its page and its target."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    dead = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            name = unquote(parts.fragment)
            if not target.exists() or (name and target in pages and name not in pages[target].names):
                dead.append(f"{path.relative_to(folder.resolve())}: {link}")
    return dead


def main() -> int:
    """The number of dead links is printed; 1 if there are any."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    dead = dead_links(Path(sys.argv[1]))
    for line in dead:
        print(line)
    print(f"{len(dead)} dead links")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
