"""Measurements: what the compiler builds, and what a call costs. Not installed."""
