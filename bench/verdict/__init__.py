"""How soon, with how much memory and how rightly a large job's fall is explained: ``python -m bench.verdict``."""
