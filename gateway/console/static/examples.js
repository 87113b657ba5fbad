// The curl and Python of what was just done.

import { key } from "./api.js";
import { copier, h } from "./dom.js";
import { t } from "./i18n.js";
import { Shot } from "./images.js";

const SAFE = /^[\w.,:/@=-]+$/;

function shell(text) {
  return SAFE.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A file that Python opens. */
class Opened {
  constructor(name) {
    this.name = name;
  }
}

const NAMED = new Map([
  [true, "True"],
  [false, "False"],
  [null, "None"],
]);
const PICTURE = `def picture(path, kind):
    with open(path, "rb") as file:
        return f"data:{kind};base64,{base64.b64encode(file.read()).decode()}"`;

/** A value as Python writes it; JSON's strings and numbers are Python's. A picture is read from its file. */
function python(value) {
  if (NAMED.has(value)) return NAMED.get(value);
  if (value instanceof Shot) return `picture(${python(value.name)}, ${python(value.type)})`;
  if (value instanceof Opened) return `open(${python(value.name)}, "rb")`;
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([name, one]) => `${python(name)}: ${python(one)}`)
    .join(", ")}}`;
}

/** JSON as curl's argument, or, where the shell is to read pictures from files, as curl's input; and they. */
function json(body) {
  const shots = [];
  const marked = function (name, value) {
    return this[name] instanceof Shot ? `\0${shots.push(this[name]) - 1}\0` : value;
  };
  const text = JSON.stringify(body, marked, 2);
  if (!shots.length) return { shots, data: `-d ${shell(text)}` };
  const read = ({ name, type }) => `"data:${type};base64,$(base64 < ${shell(name)} | tr -d '\\n')"`;
  const pieces = text.split(/"\\u0000(\d+)\\u0000"/);
  const filled = pieces.map((piece, i) => (i % 2 ? read(shots[piece]) : piece.replace(/[\\$`]/g, "\\$&")));
  return { shots, data: `--data-binary @- <<END\n${filled.join("")}\nEND` };
}

function curl(path, parts) {
  const auth = key.get() ? [`-H "Authorization: Bearer $CONCH_API_KEY"`] : [];
  return [`curl ${location.origin}${path}`, ...auth, ...parts].join(" \\\n  ");
}

function client(extra = [], shots = []) {
  const given = key.get() ? `os.environ["CONCH_API_KEY"]` : `"none"`;
  const imports = [
    ...extra,
    ...(key.get() ? ["import os"] : []),
    ...(shots.length ? ["import base64"] : []),
  ].sort();
  return [
    ...imports,
    ...(imports.length ? [""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${location.origin}/v1", api_key=${given})`,
    ...(shots.length ? ["", "", PICTURE, "", ""] : []),
  ].join("\n");
}

function call(name, rows) {
  return `${name}(\n${rows.map(([field, value]) => `    ${field}=${value},\n`).join("")})`;
}

/** Of a recording: fields as [name, value] pairs of the form. */
export function recording(task, filename, fields) {
  const path = task === "translate" ? "/v1/audio/translations" : "/v1/audio/transcriptions";
  const rows = new Map();
  for (const [name, value] of fields) {
    const plain = name.replace("[]", "");
    rows.set(plain, name.endsWith("[]") ? [...(rows.get(plain) || []), value] : value);
  }
  const method = `client.audio.${task === "translate" ? "translations" : "transcriptions"}.create`;
  const known = new Set(["model", "prompt", "response_format", "timestamp_granularities"]);
  if (task !== "translate") known.add("language");
  const extra = Object.fromEntries([...rows].filter(([name]) => !known.has(name)));
  const typed = [...rows].filter(([name]) => known.has(name)).map(([name, value]) => [name, python(value)]);
  const last = Object.keys(extra).length ? [["extra_body", python(extra)]] : [];
  const given = [["file", python(new Opened(filename))], ...typed, ...last];
  return {
    curl: curl(
      path,
      [...fields, ["file", `@${filename}`]].map(([name, value]) => `-F ${shell(`${name}=${value}`)}`),
    ),
    python: `${client()}\nanswer = ${call(method, given)}
print(answer.text)`,
  };
}

/** Of a text: the body that was sent. */
export function generation(path, body) {
  const method = path.includes("chat") ? "client.chat.completions.create" : "client.completions.create";
  const { stream_options: _, min_tokens: least, ...standard } = body;
  const rows = Object.entries(
    least === undefined ? standard : { ...standard, extra_body: { min_tokens: least } },
  );
  const { shots, data } = json(body);
  const piece = path.includes("chat") ? 'chunk.choices[0].delta.content or ""' : "chunk.choices[0].text";
  return {
    curl: curl(path, ["-N -H 'Content-Type: application/json'", data]),
    python: `${client([], shots)}\nstream = ${call(
      method,
      rows.map(([name, value]) => [name, python(value)]),
    )}
for chunk in stream:
    print(${piece}, end="", flush=True)`,
  };
}

/** Of live captions: a file at the pace of speech instead of a microphone, which neither of the two has. */
export function live(model, language) {
  const found = recording("transcribe", "speech.wav", [
    ["model", model],
    ...(language ? [["language", language]] : []),
  ]);
  const session = {
    type: "transcription",
    audio: { input: { transcription: { language: language || "en" } } },
  };
  return {
    curl: `# ${t("example.live")}\n${found.curl}`,
    python: `# speech.wav: PCM16, mono, 24 kHz
${client(["import base64", "import time", "import wave"])}
query = {"intent": "transcription"}
with client.realtime.connect(model=${python(model)}, extra_query=query) as session:
    session.session.update(session=${python(session)})
    with wave.open("speech.wav") as sound:
        while piece := sound.readframes(2400):
            session.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
            time.sleep(0.1)
    session.input_audio_buffer.commit()
    for event in session:
        if event.type.endswith("transcription.completed"):
            print(event.transcript)`,
  };
}

/** Of vector stores: `path` after /v1/vector_stores, and the method and arguments of OpenAI's SDK. */
function stores(method, path, body, rows, after = "") {
  const { shots, data } = body ? json(body) : { shots: [], data: "-X DELETE" };
  const head = body ? ["-H 'Content-Type: application/json'"] : [];
  return {
    curl: curl(`/v1/vector_stores${path}`, [...head, data]),
    python: `${client([], shots)}\n${after ? "answer = " : ""}${call(
      `client.vector_stores.${method}`,
      rows.map(([name, value]) => [name, python(value)]),
    )}${after}`,
  };
}

/** Of a new vector store. */
export function creation(name) {
  return stores("create", "", { name }, [["name", name]], "\nprint(answer.id)");
}

/** Of a vector store that is no more. */
export function deletion(store) {
  return stores("delete", `/${store}`, null, [["vector_store_id", store]]);
}

/** Of a file in a vector store; curl needs the id that the upload has given. */
export function addition(store, filename, file, attributes) {
  const attached = stores(
    "files.upload_and_poll",
    `/${store}/files`,
    { file_id: file, attributes },
    [
      ["vector_store_id", store],
      ["file", new Opened(filename)],
      ["attributes", attributes],
    ],
    "\nprint(answer.status)",
  );
  const uploaded = curl("/v1/files", ["-F purpose=assistants", `-F ${shell(`file=@${filename}`)}`]);
  return { ...attached, curl: `${uploaded}\n${attached.curl}` };
}

/** Of a search: the body that was sent. */
export function finding(store, body) {
  const { question, model, ...standard } = body;
  const extra = { ...(question && { question }), ...(model && { model }) };
  const rows = Object.entries(Object.keys(extra).length ? { ...standard, extra_body: extra } : standard);
  return stores(
    "search",
    `/${store}/search`,
    body,
    [["vector_store_id", store], ...rows],
    `
for found in answer.data:
    print(f"{found.score:.3f} {found.filename}")`,
  );
}

function block(name, code) {
  const label = h("div", { class: "code-head" }, h("span", {}, name), copier(() => code));
  return h(
    "div",
    { class: "code" },
    label,
    h("pre", { tabindex: "0", "aria-label": name }, h("code", {}, code)),
  );
}

/** Both, folded away until somebody wants them. */
export function examples() {
  const body = h("div", { class: "examples" });
  const element = h("details", { hidden: true }, h("summary", {}, t("example.title")), body);
  const show = (made) => {
    element.hidden = false;
    body.replaceChildren(block("curl", made.curl), block("Python", made.python));
  };
  return { element, show };
}
