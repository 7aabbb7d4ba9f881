"""The site: `sphinx-build -W --keep-going -q -b html docs OUT`. Nothing is fetched, at the build or by a page."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_sphinx"))

project = "bilevel"
author = copyright = "The bilevel developers"
release = metadata.version("bilevel")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",  # Markdown and notebooks
    "sphinx_copybutton",
    "sphinx_design",
    "cells",
    "docstrings",
    "mathml",
    "names",
]
exclude_patterns = ["_build", "measured"]  # tables that pages include

nb_execution_mode = "off"  # notebooks hold what they print and draw: start/execute.py

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

default_role = "code"
smartquotes_action = "D"  # dashes; but "auto" is what one types
autodoc_default_options = {
    "members": True,
    "exclude-members": "set_fit_request, set_score_request",  # scikit-learn makes them, with words of its own
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 80
maximum_signature_line_length = 80

html_theme = "pydata_sphinx_theme"
html_title = "bilevel"
html_static_path = ["assets"]
html_css_files = ["extra.css"]
html_sidebars = {"index": [], "reference/*": ["sidebar-nav-bs", "page-toc"]}  # room for signatures
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_use_index = False  # there is the search
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_prev_next": True,
    "secondary_sidebar_items": {"[!r]*/**": ["page-toc"]},  # the reference has it on the left
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "default",
    "pygments_dark_style": "github-dark",
}
copybutton_exclude = ".linenos, .gp, .go"
