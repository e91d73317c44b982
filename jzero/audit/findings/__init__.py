"""What a compiled step does that its plan did not ask for; read `finding.py` first."""
