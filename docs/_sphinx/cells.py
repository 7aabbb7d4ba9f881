"""Numbers in tables stay whole: no line ends within 5e-06."""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

HYPHEN = "\N{NON-BREAKING HYPHEN}"


def setup(app):
    app.add_post_transform(Whole)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Whole(SphinxPostTransform):
    default_priority = 900

    def run(self, **kwargs):
        for entry in self.document.findall(nodes.entry):
            for text in list(entry.findall(nodes.Text)):
                whole = re.sub(r"(?<=\de)-(?=\d)", HYPHEN, text)
                if whole != text and not isinstance(text.parent, nodes.literal | nodes.math):
                    text.parent.replace(text, nodes.Text(whole))
