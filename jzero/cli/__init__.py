"""The command line, `jzero`; read `app.py` first."""
