"""`make gpu-report`: check that Conch works on this machine's GPUs. One command, one file to attach to an
issue.

For each target it builds the small models of this repository, serves them, compares every answer with the
portable engine's, measures speed, kills one tritonserver under load, runs NVIDIA's own clients from the image
of TensorRT-LLM, and stops everything. Whatever it could not do is listed; nothing is hidden.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import httpx

from .gpu_client import CHAT, MINIATURES, SPEECH, TEXT, VECTORS, DeploymentClient, cosine
from .gpu_machine import Failed, InDocker, InProcesses, Round, RunningRound, built, machine, short

SHARE = {"KV_CACHE_FRACTION": "0.2"}  # of TensorRT-LLM, which takes most of a GPU otherwise
ROUNDS = (
    Round("torch", (SPEECH, "mini-t5", "mini-gpt2"), spare=True),
    Round("torch", ("mini-bart", *CHAT)),
    Round("torch", VECTORS),
    Round("torch", ("mini-gpt2",), ranks=2),
    Round("trtllm", (SPEECH, "mini-t5", "mini-gpt2"), spare=True, settings=SHARE, clients=True),
    Round("trtllm", ("mini-bart", *CHAT), settings=SHARE),
    Round("trtllm", ("mini-gpt2",), ranks=2, settings=SHARE),
    Round("tensorrt", VECTORS),
)
TARGETS = tuple(dict.fromkeys(one.target for one in ROUNDS))
MODELS = tuple(dict.fromkeys(model for one in ROUNDS for model in one.models))
EXPECTED = MINIATURES / "expected.json"
AT_ONCE = (1, 16)
SECONDS = float(os.environ.get("GPU_REPORT_SECONDS", "10"))  # of each measurement
RETURN = 300.0  # seconds until a killed instance must answer again
SURE = {"mini-gpt2": 5}  # ids that must agree where a text goes on freely: two words may be nearly as likely
CLOSE = 0.999  # cosine with the portable engine's vector
MOST = 1_000_000  # bytes of the file


@dataclass
class GpuReport:
    """Steps and how they ended, written after each step, so that an interrupted run leaves its results."""

    path: Path
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    details: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Run a step; a failure becomes a row of the report, and the next step is tried all the same."""
        seen: list[str] = []
        started = time.monotonic()
        print(f"gpu-report: {name} …", flush=True)
        state = "ok"
        try:
            yield seen.append
        except Failed as failed:
            state = "not done" if failed.skipped else "FAILED"
            seen.append(str(failed))
            if failed.output:
                self.details.append((name, failed.output))
        except (OSError, SubprocessError, httpx.HTTPError, LookupError, TypeError, ValueError) as error:
            state = "FAILED"
            seen.append(repr(error))
        finally:
            self.rows.append((name, state, "; ".join([*seen, f"{time.monotonic() - started:.0f} s"])))
            self.path.write_text(self.text(), "utf-8")

    def text(self) -> str:
        """Return the report in Markdown."""
        failed = [name for name, state, _ in self.rows if state != "ok"]
        head = "all steps succeeded" if not failed else f"not ok: {', '.join(failed)}"
        lines = [
            "# Conch on a GPU",
            "",
            f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}; {head}.",
            "",
            "| step | state | what was seen |",
            "|---|---|---|",
        ]
        lines += [f"| {name} | {state} | {short(seen, 600)} |" for name, state, seen in self.rows]
        for name, output in self.details:
            lines += ["", f"## {name}", "", "```", output.replace("```", "'''"), "```"]
        whole = ("\n".join(lines) + "\n").encode()
        return whole[:MOST].decode("utf-8", "ignore")

    @property
    def succeeded(self) -> bool:
        """Tell whether nothing failed; a step that could not run is not a failure."""
        return not any(state == "FAILED" for _, state, _ in self.rows)


def expected() -> dict[str, list[dict[str, Any]]]:
    """Read the portable engine's answers: ids and texts by model, transcripts by recording (`python -m
    scripts.gpu_report --record`).
    """
    return dict(json.loads(EXPECTED.read_text("utf-8")))


def differences(server: DeploymentClient, model_id: str) -> Iterator[str]:
    """Compare with the portable engine's answers; at most one line for each row."""
    for row in expected()[model_id]:
        if model_id == SPEECH:
            name, wanted, found = row["recording"], row["text"], server.transcript(row["recording"])
        elif model_id in CHAT:
            name, wanted, found = row["text"], row["answer"], server.reply(row, model_id)
        elif model_id in VECTORS:
            name, wanted = row.get("picture") or row["text"], "1"
            near = cosine(server.vector(row, model_id), row["vector"])
            found = wanted if near >= CLOSE else f"cosine {near:.5f}"
        else:
            sure = SURE.get(model_id)
            ids, _ = server.ids(row, model_id)
            name, wanted, found = row["text"], str(row["ids"][:sure]), str(ids[:sure])
            if wanted == found and not sure:
                wanted, found = row["answer"], server.text(row, model_id)
        if wanted != found:
            yield f"{name}: {found!r} instead of {wanted!r}"


def compare(server: DeploymentClient, model_id: str, say: Callable[[str], None]) -> None:
    """Compare every expected answer of one model."""
    rows, wrong = expected()[model_id], list(differences(server, model_id))
    say(f"{len(rows) - len(wrong)} of {len(rows)} as the portable engine")
    if wrong:
        raise Failed(f"{len(wrong)} differ", output="\n".join(wrong))
    if model_id in TEXT and not min(min(server.ids(row, model_id)[1]) for row in rows) < -1e-6:
        raise Failed("all log probabilities are 0: they are normalised among the likeliest token alone")


def answer(server: DeploymentClient, row: dict[str, Any], model_id: str) -> Any:
    """Return what a model answers to an expected row: a transcript, a vector or a text."""
    if model_id == SPEECH:
        return server.transcript(row["recording"])
    ask = server.vector if model_id in VECTORS else server.reply if model_id in CHAT else server.text
    return ask(row, model_id)


def measure(server: DeploymentClient, model_id: str, say: Callable[[str], None]) -> None:
    """Send requests for SECONDS from so many clients; a recording lasts 10 s."""
    first = expected()[model_id][0]
    for clients in AT_ONCE:
        begun = time.monotonic()
        deadline, times = begun + SECONDS, list[float]()

        def run(_: int, deadline: float = deadline, times: list[float] = times) -> None:
            while (started := time.monotonic()) < deadline:
                answer(server, first, model_id)
                times.append(time.monotonic() - started)

        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(run, range(clients)))
        rate, ordered = len(times) / (time.monotonic() - begun), sorted(times)
        speed = f", {10 * rate:.0f} × real time" if model_id == SPEECH else ""
        say(
            f"{clients} at once: {rate:.1f} requests/s{speed}, p50 {ordered[len(ordered) // 2] * 1000:.0f} "
            f"ms, p95 {ordered[int(len(ordered) * 0.95)] * 1000:.0f} ms"
        )


def kill_one(
    deployment: RunningRound, server: DeploymentClient, index: int, say: Callable[[str], None]
) -> None:
    """Kill one of mini-whisper's two tritonservers under load: no request may be lost; it must return."""
    failed, done, stopping = list[str](), list[float](), [False]

    def load(_: int) -> None:
        while not stopping[0]:
            try:
                server.transcript("order.wav")
                done.append(time.monotonic())
            except (Failed, httpx.HTTPError) as error:
                failed.append(repr(error))

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(load, n) for n in range(4)]
        try:
            time.sleep(3)
            deployment.kill(index)
            killed = time.monotonic()
            time.sleep(2)
            while not _answers(server, index):
                if time.monotonic() - killed > RETURN:
                    late = f"triton-{index} did not come back within {RETURN:.0f} s"
                    raise Failed(late, output=deployment.log(index))
                time.sleep(0.5)
            say(f"back after {time.monotonic() - killed:.1f} s")
        finally:
            stopping[0] = True
            [one.result() for one in running]
    say(f"{len(done)} requests answered meanwhile, {len(failed)} failed")
    if failed:
        raise Failed("requests were lost", output="\n".join(failed[:20]))


def _answers(server: DeploymentClient, index: int) -> bool:
    url = f"{server.kserve}/instances/{index}/v2/models/whisper_bls/ready"
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    return False


def nvidias(deployment: RunningRound) -> dict[str, list[str]]:
    """Return NVIDIA's own clients and their arguments."""
    speech, text = (deployment.round.models.index(model_id) for model_id in (SPEECH, "mini-t5"))
    host, _, port = deployment.address(speech)[1].partition(":")
    http, grpc = deployment.address(text)
    tokenizer = ["--tokenizer-dir", deployment.engine(text), "--tokenizer-type", "auto"]
    data = ["--max-input-len", "500", "--dataset", f"{deployment.miniatures}/simple_data.json"]
    sound = ["--audio-path", f"{deployment.miniatures}/recordings/order.wav"]
    return {
        "/app/client/inflight_batcher_llm_client.py": ["-u", grpc, *tokenizer, "--request-output-len", "16"],
        "/app/tools/inflight_batcher_llm/end_to_end_test.py": ["-u", http, *data],
        "/app/tools/whisper/client.py": ["--server-addr", host, "--server-port", port, *sound],
    }


def run_round(make: Callable[[Round], RunningRound], served: Round, report: GpuReport) -> None:
    """Build, start, compare, measure, kill and stop; models that cannot be built are left out."""
    title = served.target + (f" on {served.ranks} GPUs" if served.ranks > 1 else "")
    able = []
    for model_id in served.models:
        with report.step(f"{title}, {model_id}: build") as say:
            say(built(make(served), "check", model_id))
            say(built(make(served), "engines", model_id))
            able.append(model_id)
    served = replace(served, models=tuple(able), spare=served.spare and SPEECH in able)
    deployment = make(served)
    server, started = DeploymentClient(*deployment.urls()), False
    try:
        with report.step(f"{title}, {', '.join(able)}: start"):
            if not able:
                raise Failed("no model was built", skipped=True)
            deployment.up()
            started = True
        if started:
            look(deployment, server, served, title, report)
    finally:
        with report.step(f"{title}, {', '.join(served.models)}: stop"):
            deployment.down()


def look(
    deployment: RunningRound, server: DeploymentClient, served: Round, title: str, report: GpuReport
) -> None:
    """Run every step that needs ready servers."""
    for model_id in served.models:
        with report.step(f"{title}, {model_id}: answers") as say:
            compare(server, model_id, say)
        with report.step(f"{title}, {model_id}: speed") as say:
            measure(server, model_id, say)
    if served.clients and {SPEECH, "mini-t5"} - {*served.models}:
        with report.step("NVIDIA's clients"):
            raise Failed("one of the models that they ask was not built", skipped=True)
    elif served.clients:
        for script, arguments in nvidias(deployment).items():
            with report.step(f"NVIDIA's {script.removeprefix('/app/')}") as say:
                printed = deployment.client(script, arguments).strip()
                say(short(printed.rpartition("\n")[2] or "no output"))
    if served.spare:
        with report.step(f"{title}: one tritonserver killed under load") as say:
            kill_one(deployment, server, len(served.models), say)


def run_all(
    make: Callable[[Round], RunningRound], report: GpuReport, rounds: Sequence[Round] = ROUNDS
) -> None:
    """Run every round in turn; a failed one does not end the next."""
    with report.step("machine") as say:
        for line in machine():
            say(line)
    for served in rounds:
        possible = False
        with report.step(f"{served.target}, {', '.join(served.models)}: {served.ranks} GPU"):
            served.possible()
            possible = True
        if possible:
            run_round(make, served, report)


def record(url: str, kserve: str) -> None:
    """Record the portable engine's answers (`make serve`) as those expected of a GPU, for served models."""
    from tokenizers import Tokenizer

    server, prompts = DeploymentClient(url, kserve), expected()
    ready = httpx.get(f"{url}/health/ready", timeout=60, trust_env=False).json()["models"]
    for model_id in prompts.keys() & ready.keys():
        for row in prompts[model_id]:
            if model_id in TEXT:
                folder = MINIATURES / model_id.removeprefix("mini-")
                row["input_ids"] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(row["text"]).ids
                row["ids"] = server.ids(row, model_id)[0]
            found = answer(server, row, model_id)
            if model_id in VECTORS:
                row["vector"] = [round(x, 5) for x in found]
            else:
                row["text" if model_id == SPEECH else "answer"] = found
    EXPECTED.write_text(_compact(json.dumps(prompts, indent=1, ensure_ascii=False)), "utf-8")


def _compact(text: str) -> str:
    """Write JSON with each list of numbers on one line."""
    return re.sub(r"\[\s+(-?\d[^\[\]{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def main() -> int:
    """Return exit status 0 if no step failed; the file is written in any case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("gpu-report.md"))
    parser.add_argument("--targets", default=os.environ.get("GPU_REPORT_TARGETS") or ",".join(TARGETS))
    parser.add_argument(
        "--models",
        default=os.environ.get("GPU_REPORT_MODELS") or ",".join(MODELS),
        help="only deployments that serve one of these",
    )
    parser.add_argument("--processes", action="store_true", help="inside the image, without Docker")
    parser.add_argument(
        "--record",
        nargs=2,
        metavar=("URL", "KSERVE"),
        help="write miniatures/expected.json from a running portable deployment",
    )
    arguments = parser.parse_args()
    if arguments.record:
        record(*arguments.record)
        return 0
    targets, models = arguments.targets.split(","), arguments.models.split(",")
    for option, given, known in (("targets", targets, TARGETS), ("models", models, MODELS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"--{option}: {unknown[0]!r} is none of {', '.join(known)}")
    rounds = [one for one in ROUNDS if one.target in targets and set(one.models) & set(models)]
    if not rounds:
        parser.error("no deployment of these targets serves one of these models")
    report, environment = GpuReport(arguments.output.resolve()), dict(os.environ)
    kind = InProcesses if arguments.processes else InDocker
    run_all(lambda served: kind(served, environment), report, rounds)
    print(f"gpu-report: {report.path}; attach it to an issue, even if every step passed")
    return 0 if report.succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
