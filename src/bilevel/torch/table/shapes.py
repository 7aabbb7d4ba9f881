"""Views, permutations, joins and splits."""
