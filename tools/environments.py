"""Virtual environments: which Pythons there are, and what is installed in each.

Everything is safe to repeat: a stamp in the environment says what it holds, and a
stamp that does not match the project file any more means another installation.
May import: the standard library alone. Read next: `run_suite.py`.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Python 3.11 stops at JAX 0.10.2; from 3.12 on there is the newest JAX. Above
# 3.13 nothing has been tested.
FIRST_WITH_NEWEST_JAX = (3, 12)
LAST_TESTED = (3, 13)

Version = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One virtual environment.

    Attributes:
        folder: where it is or will be.
        base: the interpreter that it is made from.
        version: of that interpreter, (major, minor).
    """

    folder: Path
    base: str
    version: Version

    @property
    def python(self) -> str:
        """The interpreter inside."""
        return str(self.folder / "bin" / "python")

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.folder.name} (Python {self.version[0]}.{self.version[1]})"

    def command(self, name: str) -> str:
        """A program that was installed inside."""
        return str(self.folder / "bin" / name)


def default_environment() -> Environment:
    """`.venv`, made from the interpreter that runs this."""
    return Environment(
        folder=ROOT / ".venv",
        base=sys.executable,
        version=(sys.version_info.major, sys.version_info.minor),
    )


def newest_environment(default: Environment) -> Environment | None:
    """`.venv-newest`, if this machine has a newer tested Python than the default.

    Looked at are the commands `python3.N` and what pyenv has installed.
    """
    for minor in range(LAST_TESTED[1], FIRST_WITH_NEWEST_JAX[1] - 1, -1):
        if (3, minor) <= default.version:
            return None
        for candidate in _candidates(minor):
            if _is_usable(candidate, (3, minor)):
                return Environment(
                    folder=ROOT / ".venv-newest", base=candidate, version=(3, minor)
                )
    return None


def _candidates(minor: int) -> list[str]:
    on_path = shutil.which(f"python3.{minor}")
    roots = [os.environ.get("PYENV_ROOT"), os.path.expanduser("~/.pyenv")]
    found = [
        path
        for root in roots
        if root
        for path in glob.glob(f"{root}/versions/3.{minor}.*/bin/python3.{minor}")
    ]
    newest_first = sorted(set(found), key=_patch, reverse=True)
    return [*newest_first, *([on_path] if on_path else [])]


def _patch(path: str) -> tuple[int, ...]:
    folder = Path(path).parent.parent.name
    return tuple(int(part) for part in folder.split(".") if part.isdigit())


def _is_usable(python: str, version: Version) -> bool:
    """Says whether it runs (a pyenv shim may not) and can make environments."""
    probe = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    try:
        result = subprocess.run(
            [python, "-c", probe], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0 and result.stdout.split() == [
        str(part) for part in version
    ]


def is_ready(env: Environment, extras: str) -> bool:
    """Says whether the environment holds the project with these extras."""
    stamp = _stamp(env, extras)
    return stamp.exists() and stamp.read_text() == _fingerprint(env)


def install(env: Environment, extras: str) -> None:
    """Makes the environment if need be and installs the project with its extras.

    Args:
        env: the environment.
        extras: extras of the project, separated by commas.

    Raises:
        subprocess.CalledProcessError: a command failed; its output was shown.
    """
    if is_ready(env, extras):
        return
    made = env.folder / "made-by.stamp"
    if not (made.exists() and made.read_text() == _base(env)):
        # Also an environment of another Python, or half of one.
        subprocess.run([env.base, "-m", "venv", "--clear", env.folder], check=True)
        made.write_text(_base(env))
    # Quiet down to errors: what warns here is the set-up of pip, not this project.
    pip = [env.python, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    subprocess.run([*pip, "-e", f".[{extras}]"], cwd=ROOT, check=True)
    _stamp(env, extras).write_text(_fingerprint(env))


def _stamp(env: Environment, extras: str) -> Path:
    return env.folder / f"holds-{extras.replace(',', '-')}.stamp"


def _base(env: Environment) -> str:
    return f"{env.version[0]}.{env.version[1]} {env.folder}"


def _fingerprint(env: Environment) -> str:
    project = (ROOT / "pyproject.toml").read_bytes()
    return f"{_base(env)} {hashlib.sha256(project).hexdigest()}"
