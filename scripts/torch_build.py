"""Read pip's report of a trial run and say which build of torch would be installed."""

from __future__ import annotations

import json
import shutil
import sys

CPU_HINT = """\
           No NVIDIA GPU was found on this machine. The CPU build is enough here and about 200 MB:
             make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu"""


def main() -> int:
    """Describe the one file in the report on standard input."""
    try:
        (item,) = json.load(sys.stdin)["install"]
    except (ValueError, KeyError):
        return 1
    metadata = item["metadata"]
    needs = " ".join(metadata.get("requires_dist", ()))
    # torch's CUDA builds name NVIDIA's packages among what they need; the CPU builds do not.
    cuda = "nvidia" in needs or "cuda" in needs
    if "+cpu" in metadata["version"] or not cuda:
        print(f"  download: torch {metadata['version']}, the CPU build, about 200 MB")
        return 0
    print(f"  download: torch {metadata['version']}, a CUDA build: several GB with its libraries")
    if shutil.which("nvidia-smi") is None:
        print(CPU_HINT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
