"""Reads compiled programs: memory, collectives; and pods that are not there."""
