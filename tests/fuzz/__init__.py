"""Odd values for every argument of every public function: each is refused in our words, or is fine."""
