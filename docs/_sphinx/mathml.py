"""Formulas as MathML, so that pages need no script and nothing from elsewhere."""

import html
import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

TAG = re.compile(r"\\tag\{([^}]*)\}")
TOKEN = re.compile(r"\\qquad|\\begin|\\end|\\.|[{}]|[^\\{}]+")
SAME = [(r"{aligned}", r"{split}"), (r"\arg\min", r"\operatorname{argmin}")]  # what the converter calls them
CORE = [  # what browsers know of MathML has no mathvariant and no menclose, and takes a bar for a relation
    (r"\\([{}])(?=</mo>)", r"\1"),  # \Big\{ keeps its backslash
    (r"<mo[^>]*>(&#x02016;|&#x0007C;)</mo>", r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>'),
    (r"<mi>(&#x027E8;|&#x027E9;)</mi>", r'<mo stretchy="false">\1</mo>'),
    (  # a function and what it is applied to
        r"(?<!<msup>)(?<!<msub>)<mi>(log|exp|sinh?|cosh?|tanh?)</mi>(?!<mo)",
        r'<mi>\1</mi><mspace width="0.167em" />',
    ),
    (r'<mi mathvariant="double-struck">E</mi>', "<mi>&#x1D53C;</mi>"),
    (r'<mi mathvariant="script">O</mi>', "<mi>&#x1D4AA;</mi>"),
    (r'<menclose notation="box">(.*)</menclose>', r'<mrow class="boxed">\1</mrow>'),
]
POWER = re.compile(r"\\[bB]igg?r?\s*(?:[)\]]|\\\})\s*[\^_]")
PAIRED = [(r"\\[bB]igg?l?\s*(?=[(\[]|\\\{)", r"\\left"), (r"\\[bB]igg?r?\s*(?=[)\]]|\\\})", r"\\right")]
LONG = 24  # characters; a formula in the text that has more may be wider than a small screen

log = logging.getLogger(__name__)


def setup(app):
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator, node: nodes.math):
    math = _convert(node)
    long = len(_text(math)) > LONG
    translator.body.append(f'<span class="long">{math}</span>' if long else math)
    raise nodes.SkipNode


def _block(translator, node: nodes.math_block):
    tex = node.astext()
    number = TAG.search(tex)
    label = f'<span class="equation-number">({number[1]})</span>' if number else ""
    parts = "".join(_convert(node, part, display="block") for part in _parts(TAG.sub("", tex)))
    translator.body.append(f'<div class="equation"><div class="formulas">{parts}</div>{label}</div>')
    raise nodes.SkipNode


def _parts(tex: str) -> list[str]:
    """The formulas that \\qquad sets apart, outside braces and environments: they may go on lines of their own."""
    parts, depth = [""], 0
    for token in TOKEN.findall(tex):
        depth += token in ("{", r"\begin")
        depth -= token in ("}", r"\end")
        if token == r"\qquad" and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _convert(node: nodes.Node, tex: str | None = None, display: str = "inline") -> str:
    tex = node.astext() if tex is None else tex
    for ours, theirs in SAME:
        tex = tex.replace(ours, theirs)
    if POWER.search(tex):  # a bracket with a power is only as tall as it should be if it is paired
        for sized, paired in PAIRED:
            tex = re.sub(sized, paired, tex)
    math = convert(tex, display=display)
    for theirs, browsers in CORE:
        math = re.sub(theirs, browsers, math)
    if re.search(r"[\\&$]", _text(math)):
        log.warning(
            "the formula %r has something in it that is not converted: %s", tex, _text(math), location=node
        )
    return math


def _text(math: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", math))
