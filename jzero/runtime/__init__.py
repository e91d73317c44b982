"""What touches devices: meshes, placing arrays, tracing and compiling a step.

May import: passes, ir, plan, compat, errors, config. Read next: `program.py`.
"""
