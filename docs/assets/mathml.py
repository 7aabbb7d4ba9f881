"""A build hook that turns formulas into MathML, so that pages need no script and nothing from elsewhere."""

import html
import re

from latex2mathml.converter import convert

ARITHMATEX = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\s*\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]\s*</(?P=tag)>', re.DOTALL
)
TAG = re.compile(r"\\tag\{([^}]*)\}")


def on_page_content(content: str, **_) -> str:
    return ARITHMATEX.sub(_formula, content)


def _formula(match: re.Match) -> str:
    tex = html.unescape(match["tex"])
    if match["open"] == "(":
        return convert(tex)
    number = TAG.search(tex)
    label = f'<span class="equation-number">({number[1]})</span>' if number else ""
    return f'<div class="equation">{convert(TAG.sub("", tex), display="block")}{label}</div>'
