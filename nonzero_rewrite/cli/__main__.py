"""``python -m nonzero_rewrite.cli``."""

from nonzero_rewrite.cli import main

main(prog_name="nonzero-rewrite")
