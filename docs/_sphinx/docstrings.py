"""Docstrings are written to be read as they are, in plain Markdown; autodoc wants reStructuredText."""

import ast
import re
import textwrap

SECTION = re.compile(r"(Args|Returns|Raises|Yields):")
KEPT = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|\[(?P<text>[^\]]+)\]\((?P<url>https?://[^)\s]+)\)"
    r"|(?<![\w*])(?P<emphasis>(?P<stars>\*\*?)(?=\w)[^*]+?(?<=[\w.'])(?P=stars))(?![\w*])"
    r"|(?P<special>[\\*|]|(?<=\w)_(?!\w))"  # what reStructuredText would take for markup
)


def setup(app):
    app.connect(
        "autodoc-process-docstring", _process, priority=400
    )  # napoleon, which reads the sections, has 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app, what, name, obj, options, lines: list[str]):
    lines[:] = translated("\n".join(lines)).split("\n")


def translated(docstring: str) -> str:
    """The docstring, paragraph by paragraph: indented ones are code, except under the heading of a section."""
    done, in_section = [], False
    for paragraph in re.split(r"\n{2,}(?! )|\n{2,}(?=    )", docstring):
        indented = all(line.startswith("    ") for line in paragraph.split("\n"))
        if indented and not in_section:
            done.append(_block(paragraph))
        else:
            in_section = bool(SECTION.match(paragraph)) or (in_section and indented)
            done.append(_prose(paragraph))
    return "\n\n".join(done)


def _block(paragraph: str) -> str:
    code = textwrap.dedent(paragraph)
    try:
        ast.parse(code)
        language = "python"
    except SyntaxError:
        language = "text"
    return f".. code-block:: {language}\n\n{textwrap.indent(code, '   ')}"


def _prose(paragraph: str) -> str:
    bullet = re.match(r"\* ", paragraph)  # lists are the same in both
    lines = [re.sub(r"^( *)\* ", r"\1- ", line) for line in paragraph.split("\n")] if bullet else [paragraph]
    return KEPT.sub(_inline, "\n".join(lines))


def _inline(match: re.Match) -> str:
    if match["code"]:
        return rf"\ ``{match['code']}``\ "
    if match["url"]:
        return f"`{match['text']} <{match['url']}>`__"
    return match["emphasis"] or "\\" + match["special"]
