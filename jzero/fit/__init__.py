"""Trying configurations by compiling them; read `job.py` first."""
