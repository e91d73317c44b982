"""A toolkit for jaxprs: trace, walk, follow placements, edit. No policy.

May import: compat, plan, errors, config. Read next: `marks.py` (forward),
`demands.py` (backward), `edit.py` (how a new body is written).
"""
