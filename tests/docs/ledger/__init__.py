"""What the pages claim in their sentences, and where each figure comes from: one row a claim, one file a section."""

from origins import Claims

from ledger import about, applications, concepts, how_to, start, theory

CLAIMS: Claims = {
    page: claims
    for section in (start, about, applications, concepts, how_to, theory)
    for page, claims in section.CLAIMS.items()
}
