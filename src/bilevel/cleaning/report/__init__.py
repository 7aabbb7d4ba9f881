"""Page with the ranking, its evaluation, and an explanation."""

from bilevel.cleaning.report.page import as_page as as_page
