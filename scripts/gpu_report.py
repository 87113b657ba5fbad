"""`make gpu-report`: does Conch work on this machine's GPUs? One command, one file to attach to an issue.

It builds the small models of this repository with TensorRT-LLM, serves them, compares every answer with the
portable engine's, runs NVIDIA's own clients from the image, measures, kills one tritonserver under load, and
stops everything. What it could not do it names; nothing is hidden.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from .gpu_machine import ROOT, Deployment, Failed, InDocker, InProcesses, machine, short

MODELS = (
    "mini-whisper",
    "mini-t5",
    "mini-gpt2",
)  # instance 3 is mini-whisper once more: one of two is killed
EXPECTED = ROOT / "miniatures" / "expected.json"
RECORDINGS = ROOT / "miniatures" / "recordings"
AT_ONCE = (1, 16)
SECONDS = float(os.environ.get("GPU_REPORT_SECONDS", "10"))  # of each measurement
RETURN = 300.0  # seconds until a killed instance must answer again
SURE = {"mini-gpt2": 5}  # ids that must agree where a text goes on freely: two words may be nearly as likely


@dataclass
class Report:
    """Steps with how they ended, written after each, so that an interrupted run leaves what it knows."""

    path: Path
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    details: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """A step that fails is a row of the report; the next one is tried all the same."""
        said: list[str] = []
        started = time.monotonic()
        print(f"gpu-report: {name} …", flush=True)
        state = "ok"
        try:
            yield said.append
        except Failed as failed:
            state = "not done" if failed.skipped else "FAILED"
            said.append(str(failed))
            if failed.output:
                self.details.append((name, failed.output))
        except (OSError, httpx.HTTPError, KeyError, ValueError) as error:
            state = "FAILED"
            said.append(repr(error))
        finally:
            self.rows.append((name, state, "; ".join([*said, f"{time.monotonic() - started:.0f} s"])))
            self.path.write_text(self.text(), "utf-8")

    def text(self) -> str:
        """Markdown."""
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
        lines += [f"| {name} | {state} | {short(said, 600)} |" for name, state, said in self.rows]
        for name, output in self.details:
            lines += ["", f"## {name}", "", "```", output.replace("```", "'''"), "```"]
        return "\n".join(lines) + "\n"

    @property
    def succeeded(self) -> bool:
        """Whether nothing failed; a step that could not run is not a failure."""
        return not any(state == "FAILED" for _, state, _ in self.rows)


def expected() -> dict[str, list[dict[str, Any]]]:
    """What the portable engine says: ids and texts by model, transcripts by recording (`python -m
    scripts.gpu_report --record`).
    """
    return dict(json.loads(EXPECTED.read_text("utf-8")))


@dataclass(frozen=True)
class Server:
    """A running deployment's public listeners."""

    url: str
    kserve: str

    def infer(self, model_id: str, model: str, tensors: dict[str, tuple[str, list[Any]]]) -> dict[str, Any]:
        """Outputs by name, flat."""
        inputs = [
            {"name": name, "datatype": kind, "shape": [1, len(data)], "data": data}
            for name, (kind, data) in tensors.items()
        ]
        answer = httpx.post(
            f"{self.kserve}/v2/models/{model}/infer",
            json={"inputs": inputs},
            headers={"x-model-id": model_id},
            timeout=120,
            trust_env=False,
        )
        if answer.status_code != 200:
            raise Failed(f"{model_id} {model}: {answer.status_code} {short(answer.text)}")
        return {row["name"]: row["data"] for row in answer.json()["outputs"]}

    def ids(self, row: dict[str, Any], model_id: str) -> tuple[list[int], list[float]]:
        """What the engine's unary face says to ids, and its log probabilities."""
        one = {name: ("INT32", [row[name]]) for name in ("end_id", "pad_id")}
        ids = {
            "input_ids": ("INT32", row["input_ids"]),
            "input_lengths": ("INT32", [len(row["input_ids"])]),
            "request_output_len": ("INT32", [row["max_tokens"]]),
        }
        found = self.infer(
            model_id,
            "tensorrt_llm",
            {**ids, **one, "runtime_top_k": ("INT32", [1]), "return_log_probs": ("BOOL", [True])},
        )
        length = found["sequence_length"][0]
        return found["output_ids"][:length], found["output_log_probs"][:length]

    def text(self, row: dict[str, Any], model_id: str) -> str:
        """What `ensemble` says to a text."""
        given = {
            "text_input": ("BYTES", [row["text"]]),
            "max_tokens": ("INT32", [row["max_tokens"]]),
            "top_k": ("INT32", [1]),
        }
        return str(self.infer(model_id, "ensemble", given)["text_output"][0])

    def transcript(self, name: str) -> str:
        """What the gateway receives."""
        with (RECORDINGS / name).open("rb") as file:
            answer = httpx.post(
                f"{self.url}/v1/audio/transcriptions",
                files={"file": file},
                data={"model": "mini-whisper"},
                timeout=120,
                trust_env=False,
            )
        if answer.status_code != 200:
            raise Failed(f"{name}: {answer.status_code} {short(answer.text)}")
        return str(answer.json()["text"])


def compare(server: Server, model_id: str, say: Callable[[str], None]) -> None:
    """Every expected answer of one model."""
    rows = expected()[model_id]
    if model_id == "mini-whisper":
        wrong = [
            f"{row['recording']}: {said!r}"
            for row in rows
            if (said := server.transcript(row["recording"])) != row["text"]
        ]
    else:
        wrong, probs = [], list[float]()
        for row in rows:
            (ids, own), sure = server.ids(row, model_id), slice(SURE.get(model_id))
            probs += own
            wrong += (
                [f"{row['text']!r}: ids {ids} instead of {row['ids']}"]
                if ids[sure] != row["ids"][sure]
                else []
            )
            wrong += (
                [f"{row['text']!r}: {said!r} instead of {row['answer']!r}"]
                if sure.stop is None and (said := server.text(row, model_id)) != row["answer"]
                else []
            )
        if not min(probs) < -1e-6:
            wrong.append("all log probabilities are 0: they are normalised among the likeliest token alone")
    say(f"{len(rows) - len(wrong)} of {len(rows)} as the portable engine says")
    if wrong:
        raise Failed(f"{len(wrong)} differ", output="\n".join(wrong))


def ask_once(server: Server, model_id: str) -> None:
    """One request as it is measured."""
    if model_id == "mini-whisper":
        server.transcript("demo.flac")
    else:
        server.text(expected()[model_id][0], model_id)


def measure(server: Server, model_id: str, say: Callable[[str], None]) -> None:
    """Requests in SECONDS by so many clients at once; a recording lasts 10 s."""
    for clients in AT_ONCE:
        begun = time.monotonic()
        deadline, times = begun + SECONDS, list[float]()

        def run(_: int, deadline: float = deadline, times: list[float] = times) -> None:
            while (started := time.monotonic()) < deadline:
                ask_once(server, model_id)
                times.append(time.monotonic() - started)

        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(run, range(clients)))
        rate, ordered = len(times) / (time.monotonic() - begun), sorted(times)
        speed = f", {10 * rate:.0f} × real time" if model_id == "mini-whisper" else ""
        say(
            f"{clients} at once: {rate:.1f} requests/s{speed}, p50 {ordered[len(ordered) // 2] * 1000:.0f} "
            f"ms, p95 {ordered[int(len(ordered) * 0.95)] * 1000:.0f} ms"
        )


def kill_one(deployment: Deployment, server: Server, say: Callable[[str], None]) -> None:
    """One of mini-whisper's two tritonservers dies under load: no request is lost, and it comes back."""
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
            deployment.kill(3)
            killed = time.monotonic()
            time.sleep(2)
            while not _answers(server, 3):
                if time.monotonic() - killed > RETURN:
                    raise Failed(
                        f"triton-3 did not come back within {RETURN:.0f} s", output=deployment.log(3)
                    )
                time.sleep(0.5)
            say(f"back after {time.monotonic() - killed:.1f} s")
        finally:
            stopping[0] = True
            [one.result() for one in running]
    say(f"{len(done)} requests answered meanwhile, {len(failed)} failed")
    if failed:
        raise Failed("requests were lost", output="\n".join(failed[:20]))


def _answers(server: Server, index: int) -> bool:
    try:
        return (
            httpx.get(
                f"{server.kserve}/instances/{index}/v2/models/whisper_bls/ready", timeout=5, trust_env=False
            ).status_code
            == 200
        )
    except httpx.HTTPError:
        return False


def flight_client(deployment: Deployment) -> list[str]:
    """Ids in, ids out."""
    options = [
        "--tokenizer-dir",
        deployment.tokenizer(1),
        "--tokenizer-type",
        "auto",
        "--request-output-len",
        "16",
    ]
    return ["/app/client/inflight_batcher_llm_client.py", "-u", deployment.inside(1)[1], *options]


def end_to_end(deployment: Deployment) -> list[str]:
    """The ensemble against its parts."""
    dataset = deployment.file(1, ROOT / "miniatures/simple_data.json")
    return [
        "/app/tools/inflight_batcher_llm/end_to_end_test.py",
        "-u",
        deployment.inside(1)[0],
        "--max-input-len",
        "500",
        "--dataset",
        dataset,
    ]


def whisper_client(deployment: Deployment) -> list[str]:
    """One recording."""
    host, _, port = deployment.inside(0)[1].partition(":")
    sound = deployment.file(0, RECORDINGS / "order.wav")
    return [
        "/app/tools/whisper/client.py",
        "--server-addr",
        host,
        "--server-port",
        port,
        "--audio-path",
        sound,
    ]


# NVIDIA's own, by the instance that they run next to and ask.
CLIENTS: dict[str, tuple[int, Callable[[Deployment], list[str]]]] = {
    "inflight_batcher_llm_client.py": (1, flight_client),
    "end_to_end_test.py": (1, end_to_end),
    "whisper/client.py": (0, whisper_client),
}


def run_all(deployment: Deployment, report: Report) -> None:
    """Every step, in turn."""
    with report.step("machine") as say:
        for line in machine():
            say(line)
    for model_id in MODELS:
        with report.step(f"{model_id}: tools and template of the image") as say:
            say(deployment.check(model_id))
    with report.step("build and start") as say:
        say(deployment.up())
    server = Server(*deployment.doors())
    for name, action in (("answers", compare), ("speed", measure)):
        for model_id in MODELS:
            with report.step(f"{model_id}: {name}") as say:
                action(server, model_id, say)
    for name, (instance, command) in CLIENTS.items():
        with report.step(f"NVIDIA's {name}") as say:
            said = deployment.inside_run(instance, command(deployment))
            say(short(said.strip().splitlines()[-1] if said.strip() else "no output"))
    with report.step("one tritonserver killed under load") as say:
        kill_one(deployment, server, say)
    with report.step("stop") as say:
        deployment.down()


def record(url: str, kserve: str) -> None:
    """Write what the portable engine says (`make serve`) as what is expected of a GPU."""
    from tokenizers import Tokenizer

    server, prompts = Server(url, kserve), json.loads(EXPECTED.read_text("utf-8"))
    for model_id, rows in prompts.items():
        for row in rows:
            if model_id == "mini-whisper":
                row["text"] = server.transcript(row["recording"])
                continue
            tokenizer = Tokenizer.from_file(
                str(ROOT / "miniatures" / model_id.removeprefix("mini-") / "tokenizer.json")
            )
            row["input_ids"] = tokenizer.encode(row["text"]).ids
            row["ids"], row["answer"] = server.ids(row, model_id)[0], server.text(row, model_id)
    EXPECTED.write_text(json.dumps(prompts, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> int:
    """Exit status 0 if no step failed; the file is written in any case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("gpu-report.md"))
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
    report = Report(arguments.output.resolve())
    deployment: Deployment = (InProcesses if arguments.processes else InDocker)(MODELS, dict(os.environ))
    try:
        run_all(deployment, report)
    finally:
        deployment.down()
    print(f"gpu-report: {report.path}; attach it to an issue, even if every step passed")
    return 0 if report.succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
