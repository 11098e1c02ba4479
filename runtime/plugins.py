"""What other packages add: found by the entry points that they declare."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from outrider.protocol.errors import BackendError, SettingError


def plugin(group: str, name: str) -> Any:
    """The object that a package registered in ``group`` under ``name``.

    Raises:
        SettingError: nobody did. BackendError: it cannot be imported.
    """
    found = {entry.name: entry for entry in entry_points(group=group)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise SettingError(f"{name!r} is not registered in {group}; installed are: {known}")
    try:
        return found[name].load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        raise BackendError(f"{name!r} of {group} does not load: {error}") from error
