"""A hook of the site: the README is its front page, and links that leave docs/ become text.

In the repository every link of a page works as it stands. On the site a link to a source file
has nothing to lead to, so its text stays; the README's links to pages lose their ``docs/``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_PAGE_OF_FOLDER = {"docker": "how-to/deploy.md", "docs/decisions": "decisions/index.md"}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Give a page's text as the site has it."""
    at = page.file.src_uri
    folder = posixpath.dirname(posixpath.join("docs", at))
    if at == "index.md":
        markdown = (_ROOT / "README.md").read_text("utf-8")
        folder = ""
    return _LINK.sub(lambda link: _link(link, folder, posixpath.dirname(at)), markdown)


def _link(link: re.Match[str], folder: str, here: str) -> str:
    text, target = link.groups()
    if re.match(r"[a-z]+:|#", target):
        return link[0]
    path, _, anchor = target.partition("#")
    full = posixpath.normpath(posixpath.join(folder, path))
    if not (_ROOT / full).exists() and not full.startswith("docs/reference/"):
        return link[0]  # for the site's own check, which says that it leads nowhere
    if full in _PAGE_OF_FOLDER:
        full = posixpath.join("docs", _PAGE_OF_FOLDER[full])
    if not full.startswith("docs/") or not full.endswith((".md", ".svg", ".png")):
        return text
    full = posixpath.relpath(full.removeprefix("docs/"), here or ".")
    return f"[{text}]({full}{'#' + anchor if anchor else ''})"
