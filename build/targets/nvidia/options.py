"""Check a command line against the tool's own --help, and a machine against an image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from conch.driver import Needs, driver, driver_findings
from conch.gpus import Gpu

from .. import Unfit

REMEDY = "use the image of docker/server.Dockerfile"


def misfits(arguments: Sequence[str], text: str) -> list[str]:
    """Return options that a --help text does not list, and values outside the choices that it lists."""
    found = []
    for i, part in enumerate(arguments):
        option, _, inline = part.partition("=")
        if not option.startswith("--"):
            continue
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
            found.append(f"it has no option {option}")
            continue
        value = inline or (
            arguments[i + 1] if i + 1 < len(arguments) and not arguments[i + 1].startswith("--") else ""
        )
        choices = re.search(rf"(?<![\w-]){re.escape(option)}[ =]\[?\{{([^}}]*)\}}", text)
        allowed = [choice.strip() for choice in choices[1].split(",")] if choices else []
        # A choice may be shown as a member of its class: KVCacheType.DISABLED.
        accepted = {form.lower() for choice in allowed for form in (choice, choice.rpartition(".")[2])}
        if value and allowed and value.lower() not in accepted:
            found.append(f"{option} {value} is not one of its choices {', '.join(allowed)}")
    return found


def require(family: str, findings: Iterable[str]) -> None:
    """Refuse to build if there are findings.

    Raises:
        Unfit: at least one finding.
    """
    if listed := "\n".join(f"  - {finding}" for finding in findings):
        raise Unfit(f"this image cannot build family {family}:\n{listed}")


def gpu_findings(found: Sequence[Gpu], needs: Needs) -> Iterator[str]:
    """Return why an image cannot use these GPUs."""
    if not found:
        yield (
            "nvidia-smi shows no GPU; start the container with GPUs (docs/docker.md), or use TARGET=openvino"
        )
    yield from driver_findings(driver(), [gpu.name for gpu in found], needs)
