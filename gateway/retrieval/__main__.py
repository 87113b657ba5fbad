"""`python -m gateway.retrieval check | reembed | backup`, with the gateway's environment: in a container
of the gateway, or through scripts/retrieval.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from conch.deployment import Deployment
from conch.errors import ApiError
from retrieval.library import Library
from retrieval.maintenance import check, copy_sqlite, reembed

from ..admission import Admission
from ..settings import Settings
from ..triton import Triton
from .service import open_library


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="retrieval", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="compare both databases; exit status 1 if they differ")
    checking.add_argument("--repair", action="store_true", help="mend what differs")
    embedding = commands.add_parser("reembed", help="embed a store with another model, while it is searched")
    embedding.add_argument("store")
    embedding.add_argument("--model", action="append", required=True, help="a MODEL_ID; several: all of them")
    saving = commands.add_parser("backup", help="copy SQLite's documents while the stack runs")
    saving.add_argument("target", type=Path)
    return parser.parse_args(arguments)


async def run(options: argparse.Namespace, library: Library) -> int:
    """Run one command on a library and return its exit status."""
    try:
        if options.command == "reembed":
            total = await reembed(library, options.store, options.model)
            print(f"{options.store}: {total} files are embedded with {', '.join(options.model)}")
            return 0
        lost, strangers = await check(library, repair=options.repair)
        done = "being mended" if options.repair else "to mend that, add --repair"
        print(f"{lost} embeddings have lost vectors, {strangers} are nobody's; {done}")
        return 0 if options.repair or not (lost or strangers) else 1
    finally:
        await library.documents.close()
        await library.vectors.close()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return exit status 0, or 1 with one sentence."""
    options, settings = parsed(arguments), Settings.of("retrieval")
    try:
        if options.command == "backup":
            if not settings.documents_url.startswith("sqlite:"):
                print(
                    "retrieval: documents are in MongoDB; use mongodump (docs/retrieval.md)", file=sys.stderr
                )
                return 1
            copy_sqlite(Path(settings.documents_url.removeprefix("sqlite:")), options.target)
            return 0
        deployment = Deployment.load(settings.deployment)
        pools = {pool.model_id: pool for pool in deployment.pools}
        triton = Triton(settings.kserve_url, pools, settings.request_seconds, deployment.inner_key)
        library = open_library(settings, pools, triton, Admission(1, "requests for embeddings"))
        if library is None:
            print("retrieval: it is not switched on in this deployment (docs/retrieval.md)", file=sys.stderr)
            return 1
        return asyncio.run(run(options, library))
    except (ApiError, OSError) as error:
        print(f"retrieval: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
