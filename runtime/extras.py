"""What to type to install what is missing. Outrider is installed from its own folder."""

from __future__ import annotations


def hint(extra: str) -> str:
    """The words for one of pyproject.toml's extras, to stand at the end of an error."""
    return f"pip install '.[{extra}]' in Outrider's folder"
