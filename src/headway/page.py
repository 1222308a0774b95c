"""A page from blocks, written as one self-contained HTML file or as Markdown with its pictures beside it."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.answer { font-size: 1.1rem; border-left: 4px solid #2a7; padding: .5rem 1rem; background: var(--soft); }
.row { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; flex: 1 1 18rem; max-width: 30rem; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; } img { max-width: 100%; height: auto; border-radius: 4px; }
figure.plot { flex-basis: 24rem; max-width: 36rem; }
.plot img { background: white; } .pixels img { width: 100%; image-rendering: pixelated; }
.wide { overflow-x: auto; margin-bottom: 1rem; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .7rem; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } td.text { white-space: normal; min-width: 18rem; text-align: left; }
pre { overflow-x: auto; background: var(--soft); padding: .7rem; font-size: .85rem; } .note { opacity: .75; font-size: .9rem; }
@media (max-width: 40rem) { th, td { white-space: normal; padding: .3rem; font-size: .85rem; } }
"""

WIDE = 44  # characters from which a cell is text, and may be broken into lines


class Page:
    """Blocks in the order they were added. Texts are plain, but for **bold** and `code`."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._html: list[str] = []
        self._markdown: list[str] = [f"# {title}"]
        self._pictures: dict[str, bytes] = {}

    def answer(self, text: str) -> None:
        """What a reader came for, in a sentence."""
        self._html.append(f"<p class=answer>{_inline(text)}</p>")
        self._markdown.append(f"**Answer.** {text}")

    def heading(self, text: str) -> None:
        self._html.append(f"<h2>{html.escape(text)}</h2>")
        self._markdown.append(f"## {text}")

    def text(self, text: str) -> None:
        self._html.append(f"<p>{_inline(text)}</p>")
        self._markdown.append(text)

    def note(self, text: str) -> None:
        """In smaller print."""
        self._html.append(f"<p class=note>{_inline(text)}</p>")
        self._markdown.append(text)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
        body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
        self._html.append(f"<div class=wide><table><tr>{cells}</tr>{body}</table></div>")
        lines = [" | ".join(c.replace("|", "\\|") for c in row) for row in (head, ["---"] * len(head), *rows)]
        self._markdown.append("\n".join(f"| {line} |" for line in lines))

    def pictures(self, pictures: Sequence[tuple[str, bytes | Figure]], *, pixels: bool = False) -> None:
        """Side by side: caption and PNG or matplotlib figure. ``pixels``: enlarge without smoothing."""
        figures = []
        for caption, picture in pictures:
            data = picture if isinstance(picture, bytes) else png(picture)
            source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            image = f'<img alt="{html.escape(caption)}" src="{source}">'
            kind = "pixels" if pixels else "plot"
            figures.append(f"<figure class={kind}><figcaption>{html.escape(caption)}</figcaption>{image}</figure>")
            name = re.sub(r"[^\w]+", "-", caption.lower()).strip("-") + ".png"
            self._pictures[name] = data
            self._markdown.append(f"{caption}:\n\n![{caption}]({name})")
        self._html.append(f"<div class=row>{''.join(figures)}</div>")

    def details(self, summary: str, text: str) -> None:
        """Preformatted text, folded."""
        self._html.append(f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(text)}</pre></details>")
        self._markdown.append(f"{summary}:\n\n```\n{text.rstrip()}\n```")

    def raw(self, text: str) -> None:
        """HTML as it is, for what Markdown has no form for; it is left out there."""
        self._html.append(text)

    def html(self) -> str:
        """The page as one file that needs no other and no network."""
        return "\n".join(
            [
                "<!doctype html><html lang=en><head><meta charset=utf-8>",
                '<meta name=viewport content="width=device-width, initial-scale=1">',
                f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head><body>",
                f"<h1>{html.escape(self.title)}</h1>",
                *self._html,
                f"<p class=note>Made by headway {version('headway')}.</p></body></html>",
            ]
        )

    def markdown(self) -> tuple[str, dict[str, bytes]]:
        """The page as Markdown, and its pictures by the file names that it gives them."""
        return "\n\n".join(self._markdown) + "\n", dict(self._pictures)


def png(figure: Figure) -> bytes:
    """A matplotlib figure as a PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, bbox_inches="tight")
    return stream.getvalue()


def _cell(text: str) -> str:
    return f"<td{' class=text' if len(text) > WIDE else ''}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    escaped = html.escape(text)
    escaped = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escaped)
