"""Scripts for Polygraphy; ``python -m nonzero_rewrite.scripts NAME`` prints where one lies."""
