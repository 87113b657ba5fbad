"""NVIDIA's images, whose tools build engines: which image this is, and the versions of what is in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from .driver import TRTLLM, TRTLLM_26, Needs
from .gpus import gpus
from .toolchain import Identity, Toolchain, ToolchainError, installed

HELP_SECONDS = 600.0
IMAGE_PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "transformers")
BANNER = re.compile(r"\[TensorRT v(\d+)\] \[b(\d+)\]")  # samples/common/logging.h, `defineTest`
EXPORTERS = ("torch", "transformers", "onnx")  # they shape a plan; a server has none of them


@dataclass(frozen=True)
class Release:
    """A release of TensorRT-LLM that this target is written for.

    Attributes:
        tag: the newest tag of NVIDIA's image that holds it
        needs: what that image needs of the driver
        unfit: families that it cannot build here, with the reason
    """

    tag: str
    needs: Needs
    unfit: Mapping[str, str] = field(default_factory=dict)


NEWER_TRANSFORMERS = "its build_multimodal_engine.py needs transformers 4.56, which renamed the networks"
RELEASES = {
    "0.20.0": Release("25.07", TRTLLM),  # docker/server.Dockerfile's
    "1.2.1": Release("26.07", TRTLLM_26, dict.fromkeys(("blip2", "llava"), NEWER_TRANSFORMERS)),
}


def needs_of(base: str) -> Needs:
    """Return what a base image needs of the driver, by its tag; of the pinned one if the tag says nothing."""
    tags = {release.tag: release.needs for release in RELEASES.values()}
    found = re.search(r":(\d\d\.\d\d)-", base)
    return tags.get(found[1], TRTLLM) if found else TRTLLM


def interpreter(tool: str, path: str, root: Path = Path("/")) -> Path | None:
    """Return the Python of the first line of a tool of the image at `root`, with PATH as `path`; None if it
    names none. Later images have TensorRT-LLM in a virtual environment.
    """
    place = Path(shutil.which(tool, path=path) or "")
    first = place.read_bytes()[:256] if place.is_file() and place.is_relative_to(root) else b""
    found = re.match(rb"#!(/\S*/python[\d.]*)\s", first)
    return Path(os.fsdecode(found[1])) if found else None


def open_mpi(root: Path) -> dict[str, str]:
    """Return variables that Open MPI needs in images that moved it: MPI_Init fails without its prefix."""
    moved = root / "usr/local/mpi"
    wanted = (moved / "bin/mpirun").exists() and "OPAL_PREFIX" not in os.environ
    return {"OPAL_PREFIX": str(moved)} if wanted else {}


@dataclass(frozen=True)
class NvidiaImage(ABC):
    """The image, or a stand-in for it, whose file system starts at `root`. `toolchain` is its name in
    manifests.
    """

    root: Path
    toolchain: ClassVar[str]

    @classmethod
    def from_environment(cls) -> Self:
        """Return the image that this process runs in; CONCH_IMAGE_ROOT gives the folder of a stand-in."""
        return cls(Path(os.environ.get("CONCH_IMAGE_ROOT") or "/"))

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the packages that determine an engine.

        Raises:
            ToolchainError: they cannot be asked.
        """

    @property
    def search_path(self) -> str:
        """Return PATH for its tools: its own folders first, without those of this virtual environment."""
        own = str(Path(sys.executable).parent)
        kept = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part and part != own]
        return os.pathsep.join([str(self.root / "usr/local/bin"), str(self.root / "usr/bin"), *kept])

    def environment(self, devices: str) -> dict[str, str]:
        """Return the environment of build steps: its own PATH, and the GPUs in nvidia-smi's numbering."""
        seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices} if devices else {}
        # PMIX_MCA_gds: steps that import TensorRT-LLM call MPI_Init, which fails without it as another user
        # than root (triton-inference-server/tensorrtllm_backend#712).
        return {"PATH": self.search_path, "PMIX_MCA_gds": "hash", **open_mpi(self.root), **seen}

    def identity(self, devices: str = "") -> Identity:
        """Return its stamp, with the first GPU of `devices`.

        Raises:
            ToolchainError: see `versions`.
        """
        mark = self.root / "etc/conch-toolchain"  # stand-ins say what they are
        # A container cannot ask for its own digest: NVIDIA's build number tells builds of one tag apart, and
        # the name holds the digest where it is given.
        base = os.environ.get("CONCH_BASE_IMAGE", "")
        build = os.environ.get("NVIDIA_BUILD_ID", "")
        gpu = next(iter(gpus(devices)), None)
        return Identity(
            mark.read_text("utf-8").strip() if mark.exists() else self.toolchain,
            self.versions(),
            {"name": base, "digest": base.partition("@")[2], "build": build},
            {"name": gpu.name, "compute_capability": gpu.compute_capability} if gpu else {},
        )


class TensorRtLlmImage(NvidiaImage):
    """The image that has TensorRT-LLM."""

    toolchain = "tensorrt_llm"

    @property
    def python(self) -> Path:
        """Return the Python that TensorRT-LLM is installed for: trtllm-build's."""
        return interpreter("trtllm-build", self.search_path, self.root) or self.root / "usr/bin/python3"

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that determine an engine.

        Raises:
            ToolchainError: its Python does not run, or TensorRT-LLM is not among them.
        """
        ask = (
            "import importlib.metadata as m, json, sys; found = ((n, d.version) for n in sys.argv[1:] "
            "for d in m.distributions(name=n)); print(json.dumps([one for one in found if one[1]]))"
        )
        try:
            done = subprocess.run(
                [self.python, "-c", ask, *IMAGE_PACKAGES],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolchainError(
                f"{self.python} cannot be asked for TensorRT-LLM's version ({error}); run this in Conch's "
                "trtllm image, or use TARGET=openvino"
            ) from error
        # Of several installations of a package, Python imports the first.
        found: dict[str, str] = dict(reversed(json.loads(done.stdout)))
        if "tensorrt_llm" not in found:
            raise ToolchainError(
                f"{self.python} has no TensorRT-LLM; run this in Conch's trtllm image, or use TARGET=openvino"
            )
        return found


class TensorRtImage(NvidiaImage):
    """The plain image of Triton, which has trtexec."""

    toolchain = "tensorrt"

    @property
    def trtexec(self) -> Path:
        """Return the path of trtexec, which compiles plans."""
        return self.root / "usr/src/tensorrt/bin/trtexec"

    def help(self) -> str | None:
        """Return what trtexec prints for --help, its version first; None if it does not run."""
        return help_of([str(self.trtexec)], self.search_path)

    def versions(self) -> dict[str, str]:
        """Return the TensorRT version that trtexec was built with, and the versions of the exporters
        installed here.

        Raises:
            ToolchainError: trtexec does not run, or does not say its version.
        """
        found = BANNER.search(self.help() or "")
        if not found:
            raise ToolchainError(
                f"{self.trtexec} does not run or does not say its version; run this in Conch's tensorrt "
                "image (docs/tensorrt-llm/encoders.md), or use TARGET=openvino"
            )
        number = int(found[1])  # NvInferVersion.h: 10000 × major + 100 × minor + patch
        version = f"{number // 10000}.{number // 100 % 100}.{number % 100}.{found[2]}"
        return {"tensorrt": version, **installed(EXPORTERS)}


def help_of(tool: Sequence[str], path: str) -> str | None:
    """Return what a tool prints for --help; None if it fails."""
    environment = {**os.environ, "PATH": path, "COLUMNS": "200"}
    try:
        done = subprocess.run(
            [*tool, "--help"],
            capture_output=True,
            text=True,
            check=False,
            timeout=HELP_SECONDS,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass(frozen=True, kw_only=True)
class ImageToolchain(Toolchain):
    """A toolchain whose tools are in one of these images; `base` is the variable with the name of its base
    image.
    """

    image: type[NvidiaImage]
    base: str
    caution = (
        "this target is held to NVIDIA's published interfaces and has never run on a GPU of its authors; "
        "TARGET=torch has. Please report how it went: make gpu-report writes a file to attach to an issue"
    )

    def needs(self, settings: Mapping[str, str]) -> Needs:
        return needs_of(settings.get(self.base, ""))

    def identity(self, devices: str = "") -> Identity:
        return self.image.from_environment().identity(devices)

    def remedy(self, model_id: str) -> str:
        """See Toolchain. The tools are in builders' images."""
        return "docker compose up -d (its builders remake what does not fit)"
