"""Short, real training programs; each runs as `python -m examples.NAME`."""
