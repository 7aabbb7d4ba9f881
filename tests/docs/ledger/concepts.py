from origins import Claims

CLAIMS: Claims = {}
