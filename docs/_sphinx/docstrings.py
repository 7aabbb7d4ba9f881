"""Docstrings are written to be read as they are, in plain Markdown; autodoc wants reStructuredText."""

import ast
import re
import textwrap

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")
MARKUP = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|\[(?P<text>[^\]]+)\]\((?P<url>https?://[^)\s]+)\)"
    r"|(?<![\w*])(?P<emphasis>(?P<stars>\*\*?)(?=\w)[^*]+?(?<=[\w.'])(?P=stars))(?![\w*])"
    r"|(?P<special>[\\*|]|(?<=\w)_(?!\w))"  # what reStructuredText would take for markup
)
SHAPED = re.compile(r"\w+\[jaxlib\._jax\.Array, '[^']*'\]")
UNNAMED = re.compile(r"<function [\w.]*<lambda>>")  # no Python: a signature with it would be shown as it is


def setup(app):
    app.connect(
        "autodoc-process-docstring", _docstring, priority=400
    )  # napoleon, which reads the sections, has 500
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _docstring(app, what: str, name: str, obj, options, lines: list[str]):
    if re.fullmatch(rf"{getattr(obj, '__name__', '')}\(.*\)", " ".join(lines).strip()):
        lines.clear()  # Python's own for a class of fields: the signature once more
    text = translated("\n".join(lines))
    if what in ("attribute", "property", "data"):
        text = text.replace(": ", ":\n", 1)  # or napoleon takes what stands before a colon for a type
    lines[:] = text.split("\n")


def _signature(app, what, name, obj, options, signature: str | None, result: str | None):
    return tuple(text and UNNAMED.sub("...", SHAPED.sub("Array", text)) for text in (signature, result))


def _skip(app, what, name, obj, skip, options) -> bool | None:
    return True if (getattr(obj, "__doc__", "") or "").startswith("Alias for field number") else None


def translated(docstring: str) -> str:
    """The docstring, paragraph by paragraph: indented ones are code, except under the heading of a section."""
    done, in_section = [], False
    for paragraph in re.split(r"\n{2,}", docstring):
        indented = all(line.startswith("    ") for line in paragraph.rstrip("\n").split("\n"))
        if indented and not in_section:
            done.append(_code(paragraph))
        else:
            in_section = bool(SECTION.match(paragraph)) or (in_section and indented)
            done.append(_prose(paragraph))
    return "\n\n".join(done)


def _code(paragraph: str) -> str:
    code = textwrap.dedent(paragraph)
    try:
        ast.parse(code)
        language = "python"
    except SyntaxError:
        language = "text"
    return f".. code-block:: {language}\n\n{textwrap.indent(code, '   ')}"


def _prose(paragraph: str) -> str:
    paragraph = re.sub(r"^( *)\* ", r"\1- ", paragraph, flags=re.MULTILINE)  # lists
    done = MARKUP.sub(_inline, paragraph)
    if paragraph.startswith("Attributes:"):
        done = re.sub(r"^ {4}\S.*?:", lambda names: names[0].replace("\\", ""), done, flags=re.MULTILINE)
    return done


def _inline(match: re.Match) -> str:
    if match["code"]:
        before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
        left = "" if not before or before.isspace() or before in "'\"([{<-/:" else r"\ "
        right = "" if not after or after.isspace() or after in "'\")]}>-/:.,;!?" else r"\ "
        return f"{left}``{match['code']}``{right}"
    if match["url"]:
        return f"`{match['text']} <{match['url']}>`__"
    return match["emphasis"] or "\\" + match["special"]
