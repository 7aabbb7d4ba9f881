"""The figures in the sentences of the pages, and where each comes from: one row per claim."""

from origins import Claims

from ledger import evidence, guide

CLAIMS: Claims = guide.CLAIMS | evidence.CLAIMS
