"""The page: what was found, what it is worth, and how to read it."""

from bilevel.cleaning.report.page import as_page as as_page
