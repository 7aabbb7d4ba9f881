"""Wherever a page or a docstring writes `bl.name` as code, it leads to that name in the reference."""

import re

from docutils import nodes
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.transforms import SphinxTransform

NAME = re.compile(r"(?:bl|bilevel)((?:\.[A-Za-z]\w*)+)(?:\(.*\))?", re.DOTALL)
SETTLED = (nodes.reference, nodes.title, desc_signature, pending_xref)


class Names(SphinxTransform):
    default_priority = 400

    def apply(self, **_):
        for code in list(self.document.findall(nodes.literal)):
            name = NAME.fullmatch(code.astext())
            if name is None or _inside(code, SETTLED):
                continue
            target = "bilevel" + name[1]
            link = pending_xref("", refdomain="py", reftype="obj", reftarget=target, refdoc=self.env.docname)
            link.source, link.line = code.source, code.line
            code.replace_self(link)
            link += code


def _inside(node: nodes.Node, kinds: tuple) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def setup(app):
    app.add_transform(Names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
