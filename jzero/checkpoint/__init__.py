"""Checkpoints: the only importer of Orbax.

May import: runtime and below. Read first: `checkpointer.py`.
"""
