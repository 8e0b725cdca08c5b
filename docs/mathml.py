"""Turn the formulas of every page into MathML while the site is built: no script, no network."""

import html
import re

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def _inline(match: re.Match) -> str:
    return convert(html.unescape(match[1]).strip())


def _block(match: re.Match) -> str:
    formula = convert(html.unescape(match[1]).strip(), display="block")
    return f'<div class="formula">{formula}</div>'


def on_page_content(content: str, **_) -> str:
    """Replace what `pymdownx.arithmatex` marked; called for every page."""
    return _BLOCK.sub(_block, _INLINE.sub(_inline, content))
