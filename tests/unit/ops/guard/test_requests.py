"""What a guard takes, refuses and makes of requests, over both protocols, from a model's own configuration."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import orjson
import pytest
import tritonclient.grpc as grpc
from tritonclient.grpc import service_pb2
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from ops.guard.checks import grpc_requests, json_requests
from ops.guard.checks.contract import Contract, RequestRefused, check_binary, check_shape

CONFIG = {
    "name": "m",
    "max_batch_size": 4,
    "input": [
        {"name": "TEXT", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "WAV", "data_type": "TYPE_FP32", "dims": [-1], "optional": True},
        {"name": "N", "data_type": "TYPE_INT32", "dims": [1], "optional": True},
        {"name": "SEED", "data_type": "TYPE_UINT64", "dims": [1], "optional": True},
        {"name": "FLAG", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
        {"name": "SMALL", "data_type": "TYPE_INT8", "dims": [-1], "optional": True},
        {"name": "HALF", "data_type": "TYPE_FP16", "dims": [2, 2], "optional": True},
    ],
    "output": [
        {"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "SCORE", "data_type": "TYPE_FP32", "dims": [3]},
        {"name": "IDS", "data_type": "TYPE_INT32", "dims": [-1]},
        {"name": "TIMES", "data_type": "TYPE_FP32", "dims": [-1, 2]},
    ],
}
M = Contract.parse(CONFIG)
TEXT = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}


def named(given: str) -> str:
    return given or "own"


def wav(*shape: object, data: object = None) -> dict[str, Any]:
    return {"name": "WAV", "datatype": "FP32", "shape": list(shape), "data": [0.5] if data is None else data}


def infer(body: object, **other: Any) -> json_requests.Checked:
    return json_requests.infer(
        M, body if isinstance(body, bytes) else json.dumps(body).encode(), other.get("head_bytes"), named
    )


def read(checked: json_requests.Checked) -> tuple[dict[str, Any], bytes]:
    head, *data = checked.body
    assert len(head) == checked.head_bytes
    return orjson.loads(head), b"".join(bytes(part) for part in data)


def test_json_becomes_binary() -> None:
    """Triton gets the tensors in their binary form, whatever form they came in; nothing foreign is left in
    the head.
    """
    head, data = read(
        infer(
            {
                "id": "x",
                "inputs": [
                    TEXT,
                    wav(1, 2, data=[[1, 2.5]]),
                    {"name": "FLAG", "datatype": "BOOL", "shape": [1, 1], "data": [True]},
                ],
            }
        )
    )
    assert data == struct.pack("<I", 1) + b"a" + struct.pack("<2f", 1, 2.5) + b"\1"
    assert [row["parameters"]["binary_data_size"] for row in head["inputs"]] == [5, 8, 1]
    assert head["id"] == "x"


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclients_requests_pass(binary: bool) -> None:
    """What NVIDIA's own client writes, over HTTP and gRPC, means the same over both protocols."""
    arrays = {"TEXT": np.array([["é"], ["bc"]], object), "WAV": np.arange(6, dtype=np.float32).reshape(2, 3)}
    inputs = []
    for name, array in arrays.items():
        inputs.append(InferInput(name, list(array.shape), "BYTES" if array.dtype == object else "FP32"))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    body, size = InferenceServerClient.generate_request_body(
        inputs, outputs=[InferRequestedOutput("OUT", binary_data=True)]
    )
    over_http = read(json_requests.infer(M, body, size, named))
    grpc_inputs = [
        grpc.InferInput(name, list(array.shape), "BYTES" if array.dtype == object else "FP32")
        for name, array in arrays.items()
    ]
    for one, array in zip(grpc_inputs, arrays.values(), strict=True):
        one.set_data_from_numpy(array)
    request = grpc._utils._get_inference_request(
        "m", grpc_inputs, "", "", [grpc.InferRequestedOutput("OUT")], 0, False, False, 0, None, None
    )
    over_grpc = read(grpc_requests.check(M, request, named))
    assert over_http[1] == over_grpc[1]
    assert over_http[0]["inputs"] == over_grpc[0]["inputs"]
    assert over_grpc[0]["outputs"] == [{"name": "OUT", "parameters": {"binary_data": True}}]
    assert over_http[0]["id"] == over_grpc[0]["id"] == "own"


HUGE = 4611686018427387904
BAD: list[tuple[object, str]] = [
    (b"{", "not valid JSON"), (b"[" * 200_000, "not valid JSON"), (b'{"inputs":' + b"[" * 5000, "not valid JSON"), (b"[]", "must be a JSON object"), (b"\xff", "not valid JSON"),
    ({}, "inputs is missing"), ({"inputs": []}, "inputs is missing"), ({"inputs": {}}, "must be a list"), ({"inputs": [1]}, "must be a list"), ({"inputs": [TEXT], "x": 1}, "'x' is unknown"),
    ({"inputs": [TEXT], "id": 7}, "id must be a string"), ({"inputs": [TEXT], "id": "x" * 2000}, "id must be a string"),
    ({"inputs": [TEXT], "parameters": {"shared_memory_region": "x"}}, "is unknown"), ({"inputs": [TEXT], "parameters": {"priority": -1}}, "from 0"),
    ({"inputs": [TEXT], "parameters": {"timeout": 1.5}}, "type int"), ({"inputs": [TEXT], "parameters": {"sequence_start": 1}}, "type bool"), ({"inputs": [TEXT], "parameters": []}, "an object"),
    ({"inputs": [wav(1, 1)]}, "'TEXT' is missing"), ({"inputs": [TEXT, TEXT]}, "given twice"), ({"inputs": [TEXT, wav(2, 1, data=[1, 2])]}, "different batch"),
    ({"inputs": [TEXT, wav(1, HUGE)]}, "exceeds 128 MiB"), ({"inputs": [TEXT, wav(1, 2**63 - 1)]}, "exceeds 128 MiB"), ({"inputs": [TEXT, wav(1, 2**31)]}, "exceeds 128 MiB"),
    ({"inputs": [TEXT, wav(1, 0, data=[])]}, "any size from 1"), ({"inputs": [TEXT, wav(1, -1)]}, "any size from 1"), ({"inputs": [TEXT, wav(1)]}, "dimensions"), ({"inputs": [TEXT, wav(1, 1, 1)]}, "dimensions"),
    ({"inputs": [TEXT, wav(1, "1")]}, "dimensions"), ({"inputs": [TEXT, wav(1, 1.0)]}, "dimensions"), ({"inputs": [TEXT, wav(1, True)]}, "dimensions"), ({"inputs": [TEXT, {**wav(1, 1), "shape": None}]}, "dimensions"),
    ({"inputs": [{**TEXT, "shape": [5, 1], "data": ["a"] * 5}]}, "takes 4 at most"), ({"inputs": [{**TEXT, "shape": [1, 2], "data": ["a", "b"]}]}, "it must be"),
    ({"inputs": [TEXT, {**wav(1, 1), "datatype": "FP64"}]}, "must be FP32"), ({"inputs": [TEXT, {**wav(1, 1), "datatype": ["FP32"]}]}, "must be FP32"), ({"inputs": [TEXT, {**wav(1, 1), "name": "NO"}]}, "unknown "),
    ({"inputs": [TEXT, wav(1, 2)]}, "has 1 values"), ({"inputs": [TEXT, wav(1, 1, data=["x"])]}, "must be FP32"), ({"inputs": [TEXT, wav(1, 1, data=[None])]}, "must be FP32"), ({"inputs": [TEXT, wav(1, 2, data=[[1], 2])]}, "mixes"),
    ({"inputs": [TEXT, wav(1, 1, data=[1e39])]}, "too large"), ({"inputs": [TEXT, wav(1, 1, data={"a": 1})]}, "must be FP32"),
    ({"inputs": [TEXT, {"name": "N", "datatype": "INT32", "shape": [1, 1], "data": [2**31]}]}, "from -2147483648"), ({"inputs": [TEXT, {"name": "N", "datatype": "INT32", "shape": [1, 1], "data": [True]}]}, "must be INT32"),
    ({"inputs": [TEXT, {"name": "SEED", "datatype": "UINT64", "shape": [1, 1], "data": [-1]}]}, "from 0"), ({"inputs": [TEXT, {"name": "SEED", "datatype": "UINT64", "shape": [1, 1], "data": [1.5]}]}, "must be UINT64"),
    ({"inputs": [TEXT, {"name": "HALF", "datatype": "FP16", "shape": [1, 2, 2], "data": [1, 2, 3, 4]}]}, "JSON cannot carry"), ({"inputs": [{**TEXT, "data": [1]}]}, "must be strings"),
    ({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1]}]}, "neither data nor"), ({"inputs": [{**TEXT, "parameters": {"binary_data_size": 1}}]}, "both data and"),
    ({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 5}}]}, "must be 1 elements"),
    ({"inputs": [{**TEXT, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]}, "shared memory is closed"), ({"inputs": [{**TEXT, "parameters": {"binary_data_size": -1}}]}, "number from 0"),
    ({"inputs": [TEXT], "outputs": [{"name": "NO"}]}, "unknown "), ({"inputs": [TEXT], "outputs": [{"name": "OUT", "parameters": {"classification": 1}}]}, "classification"),
    ({"inputs": [TEXT], "outputs": [{"name": "IDS", "parameters": {"classification": 1}}]}, "classification"), ({"inputs": [TEXT], "outputs": [{"name": "TIMES", "parameters": {"classification": 1}}]}, "of a fixed size"),
    ({"inputs": [TEXT], "outputs": [{"name": "SCORE", "parameters": {"classification": 0}}]}, "from 1 to 1000"), ({"inputs": [TEXT], "outputs": [{"name": "SCORE", "parameters": {"classification": 2**40}}]}, "from 1 to 1000"),
    ({"inputs": [TEXT], "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r"}}]}, "shared memory is closed"), ({"inputs": [TEXT], "outputs": [{"name": "OUT", "parameters": {"binary_data": 1}}]}, "true or false"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "said"), BAD)
def test_what_does_not_fit_is_refused(body: object, said: str) -> None:
    with pytest.raises(RequestRefused, match=said):
        infer(body)


@pytest.mark.parametrize(
    ("sizes", "section", "said"),
    [([5, 4], b"\1\0\0\0a" + bytes(4), None), ([5, 4], b"\1\0\0\0a" + bytes(5), "add up to"), ([5, 8], b"\1\0\0\0a" + bytes(8), "8 bytes of data"),
     ([5, 4], b"\2\0\0\0a" + bytes(4), "must be 1 elements"), ([10, 4], b"\1\0\0\0a" * 2 + bytes(4), "must be 1 elements"), ([5, 4], b"\xff\xff\xff\xffa" + bytes(4), "must be 1 elements"), ([5, 4], b"", "must be 1 elements")],
)  # fmt: skip
def test_binary_sections_are_measured(sizes: list[int], section: bytes, said: str | None) -> None:
    rows = [
        {**TEXT, "parameters": {"binary_data_size": sizes[0]}},
        {**wav(1, 1), "parameters": {"binary_data_size": sizes[1]}},
    ]
    head = json.dumps({"inputs": [{k: v for k, v in row.items() if k != "data"} for row in rows]}).encode()
    if said is None:
        assert read(infer(head + section, head_bytes=len(head)))[1] == section
    else:
        with pytest.raises(RequestRefused, match=said):
            infer(head + section, head_bytes=len(head))


def test_a_key_given_twice_reaches_triton_once() -> None:
    """Two parsers may take different ones of them; Triton's sees what was checked."""
    body = b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,4611686018427387904],"shape":[1,1],"data":["a"]}]}'
    head, _ = read(infer(body))
    assert head["inputs"][0]["shape"] == [1, 1]


def test_generate() -> None:
    """Values by the inputs' names; what other servers' clients send along with them is understood or refused."""
    made = json_requests.generate(
        M,
        json.dumps(
            {"TEXT": "a", "WAV": [1, 2], "parameters": {"N": 3}, "stream": True, "SMALL": []}
        ).encode(),
        named,
    )
    assert orjson.loads(made.body[0]) == {"id": "own", "TEXT": "a", "WAV": [1, 2], "N": 3}
    for body, said in [
        ({}, "'TEXT' is missing"), ({"TEXT": ["a", "b"]}, "it must be"), ({"TEXT": 1}, "must be a string"), ({"TEXT": "a", "N": 1.5}, "must be INT32"), ({"TEXT": "a", "max": 1}, "'max' is unknown"),
        ({"TEXT": "a", "WAV": [[1]]}, "must be FP32"), ({"TEXT": "a", "HALF": [1]}, "send it with infer"), ({"TEXT": "a", "SEED": 2**64}, "must be UINT64"), ({"TEXT": "a", "x": {}}, "'x' is unknown"),
        ({"TEXT": "a", "parameters": {"TEXT": "b"}}, "do not repeat"), ({"TEXT": "a", "priority": "x"}, "type int"), ({"TEXT": "x" * 5_000_000}, "more than"),
    ]:  # fmt: skip
        with pytest.raises(RequestRefused, match=said):
            json_requests.generate(M, json.dumps(body).encode(), named)


def message(**tensors: Any) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name="m")
    text = made.inputs.add(name="TEXT", datatype="BYTES", shape=[1, 1])
    text.contents.bytes_contents.append(b"a")
    for name, (datatype, shape, field, values) in tensors.items():
        tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
        getattr(tensor.contents, field).extend(values)
    return made


def with_flag(name: str) -> Contract:
    """Of a model that has one more input."""
    flag = {"name": name, "data_type": "TYPE_BOOL", "dims": [1], "optional": True}
    return Contract.parse({**CONFIG, "input": [*CONFIG["input"], flag]})


def test_an_input_named_stream_is_an_input() -> None:
    """TensorRT-LLM's `stream` reaches a model that has it; elsewhere it is what other servers' clients say."""
    streams = with_flag("stream")
    body = b'{"TEXT": "a", "stream": true}'
    assert orjson.loads(json_requests.generate(streams, body, named).body[0])["stream"] is True
    assert "stream" not in orjson.loads(json_requests.generate(M, body, named).body[0])


def test_what_stops_a_request_gets_no_id_of_its_own() -> None:
    """TensorRT-LLM's `stop` means the request of the same id; without one the engine says so."""
    stops = with_flag("stop")
    stop = {"name": "stop", "datatype": "BOOL", "shape": [1, 1], "data": [True]}
    for given in ("", "x"):
        inferred = json.dumps({"id": given, "inputs": [TEXT, stop]}).encode()
        generated = json.dumps({"id": given, "TEXT": "a", "stop": True}).encode()
        assert json_requests.infer(stops, inferred, None, lambda _: "own").id == given
        assert json_requests.generate(stops, generated, lambda _: "own").id == given


def test_grpc_contents_become_binary() -> None:
    made = message(
        SMALL=("INT8", [1, 3], "int_contents", [1, -2, 127]),
        FLAG=("BOOL", [1, 1], "bool_contents", [True]),
        WAV=("FP32", [1, 1], "fp32_contents", [0.5]),
    )
    _, data = read(grpc_requests.check(M, made, named))
    assert data == b"\1\0\0\0a" + b"\x01\xfe\x7f" + b"\1" + struct.pack("<f", 0.5)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"WAV": ("FP32", [1, HUGE], "fp32_contents", [0])}, "exceeds"), ({"WAV": ("FP32", [1, -1], "fp32_contents", [0])}, "any size"), ({"WAV": ("FP32", [1, 2], "fp32_contents", [0])}, "has 1 values"),
        ({"WAV": ("FP32", [1, 1], "fp64_contents", [0])}, "fp32_contents alone"), ({"SMALL": ("INT8", [1, 1], "int_contents", [128])}, "from -128"), ({"HALF": ("FP16", [1, 2, 2], "fp32_contents", [0] * 4)}, "raw_input_contents"),
        ({"NO": ("FP32", [1, 1], "fp32_contents", [0])}, "unknown "),
    ],
)  # fmt: skip
def test_grpc_refusals(tensors: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRefused, match=said):
        grpc_requests.check(M, message(**tensors), named)


def test_what_is_said_for_streams_stays_behind() -> None:
    """perf_analyzer sends it with unary requests; over HTTP Triton refuses every parameter named triton_…."""
    request = service_pb2.ModelInferRequest(model_name="m")
    request.inputs.add(name="TEXT", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(b"a")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.parameters["priority"].int64_param = 3
    head, _ = read(grpc_requests.check(M, request, named))
    assert head["parameters"] == {"priority": 3, "binary_data_output": True}


def test_more_grpc_refusals() -> None:
    """Raw contents, parameters and outputs."""

    def made(**change: Any) -> service_pb2.ModelInferRequest:
        request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"\1\0\0\0a"])
        request.inputs.add(name="TEXT", datatype="BYTES", shape=[1, 1])
        for name, act in change.items():
            act(getattr(request, name))
        return request

    read(grpc_requests.check(M, made(), named))
    for request, said in [
        (made(raw_input_contents=lambda raw: raw.append(b"")), "2 entries for 1"), (made(inputs=lambda rows: rows[0].contents.bytes_contents.append(b"a")), "both contents"),
        (made(inputs=lambda rows: rows[0].parameters["shared_memory_region"].MergeFromString(b"\x1a\x01x")), "shared memory"), (made(parameters=lambda p: setattr(p["x"], "bool_param", True)), "is unknown"),
        (made(parameters=lambda p: p["priority"].Clear()), "no value"), (made(outputs=lambda rows: setattr(rows.add(name="OUT").parameters["classification"], "int64_param", 3)), "classification"),
        (made(outputs=lambda rows: setattr(rows.add(name="OUT").parameters["shared_memory_offset"], "int64_param", 3)), "shared memory"),
    ]:  # fmt: skip
        with pytest.raises(RequestRefused, match=said):
            grpc_requests.check(M, request, named)


def test_an_answer_comes_back_as_grpc() -> None:
    """Binary outputs of an HTTP answer are the raw contents of the gRPC one."""
    head = {"id": "own", "model_name": "m", "model_version": "1", "parameters": {"sequence_id": 3, "flag": True},
            "outputs": [{"name": "OUT", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 5}}, {"name": "IDS", "datatype": "INT32", "shape": [1, 0], "parameters": {"binary_data_size": 0}}]}  # fmt: skip
    text = orjson.dumps(head)
    made = service_pb2.ModelInferResponse.FromString(
        grpc_requests.response(text + b"\1\0\0\0a", str(len(text)), "")
    )
    result = grpc.InferResult(made)
    assert result.as_numpy("OUT").tolist() == [[b"a"]]
    assert result.as_numpy("IDS").shape == (1, 0)
    assert made.id == ""
    assert made.parameters["sequence_id"].int64_param == 3


@pytest.mark.parametrize(
    ("name", "most", "in_json"),
    [
        ("text_input", 4 << 20, "text_input.* 4194304"),
        ("image_urls", 64 << 20, "the JSON part has .* 25165824"),
    ],
)
def test_pictures_may_be_longer_than_texts(name: str, most: int, in_json: str) -> None:
    """As binary data and in the JSON of generate, up to a limit."""
    model = Contract.parse({
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": name, "data_type": "TYPE_STRING", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
    })  # fmt: skip
    spec = model.inputs[name]
    long = memoryview(struct.pack("<I", most + 1) + bytes(most + 1))
    check_binary(name, spec, 1, memoryview(struct.pack("<I", most - 4) + bytes(most - 4)))
    with pytest.raises(RequestRefused, match=f"{name}.* {most}"):
        check_binary(name, spec, 1, long)
    json_requests.generate(model, json.dumps({name: ["a" * min(most, 20 << 20)]}).encode(), named)
    with pytest.raises(RequestRefused, match=in_json):
        json_requests.generate(model, json.dumps({name: ["a" * (most + 1)]}).encode(), named)


def test_rows_that_an_engine_could_not_refuse() -> None:
    """A size that the configuration leaves open has a bound where the model's parameters say one."""
    config = {
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": "ids", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
        "parameters": {"longest_row": {"string_value": "12"}},
    }
    bounded, free = Contract.parse(config), Contract.parse({**config, "parameters": {}})
    assert check_shape(bounded, "ids", "INT32", [4, 12])[1] == 48
    assert check_shape(free, "ids", "INT32", [4, 13])[1] == 52
    with pytest.raises(RequestRefused, match=r"'ids' has shape \[4, 13\]; m takes 12 in a row at most"):
        check_shape(bounded, "ids", "INT32", [4, 13])
    with pytest.raises(RequestRefused, match="takes 4 at most"):
        check_shape(bounded, "ids", "INT32", [13, 12])
