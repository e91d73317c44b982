"""Planning: shapes in, placements out. No arrays, devices or jaxprs.

Read first: `stages.py` (what a stage means), then `leaves.py`, `roles.py`,
`layout.py`, `batch.py`, and `plan.py`, which puts them together.
"""
