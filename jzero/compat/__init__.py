"""The only home of differences between JAX versions.

May import: jax alone. Read next: `jaxpr.py`.
"""
