// The curl and Python of what was just done.

import { key } from "./api.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";

const SAFE = /^[\w.,:/@=-]+$/;

function shell(text) {
  return SAFE.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A value as Python writes it; JSON's strings, numbers and lists are Python's. */
function python(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  return JSON.stringify(value);
}

function curl(path, parts) {
  const auth = key.get() ? [`-H "Authorization: Bearer $CONCH_API_KEY"`] : [];
  return [`curl ${location.origin}${path}`, ...auth, ...parts].join(" \\\n  ");
}

function client(extra = []) {
  const given = key.get() ? `os.environ["CONCH_API_KEY"]` : `"none"`;
  const imports = [...extra, ...(key.get() ? ["import os"] : [])].sort();
  return [
    ...imports,
    ...(imports.length ? [""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${location.origin}/v1", api_key=${given})`,
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
  const given = [["file", `open(${python(filename)}, "rb")`], ...typed, ...last];
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
  const piece = path.includes("chat") ? 'chunk.choices[0].delta.content or ""' : "chunk.choices[0].text";
  return {
    curl: curl(path, [
      "-N -H 'Content-Type: application/json'",
      `-d ${shell(JSON.stringify(body, null, 2))}`,
    ]),
    python: `${client()}\nstream = ${call(
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

function block(name, code) {
  const copied = () =>
    navigator.clipboard?.writeText(code).then(() => (button.textContent = t("example.copied")));
  const button = h("button", { type: "button", class: "small", onclick: copied }, t("example.copy"));
  const label = h("div", { class: "code-head" }, h("span", {}, name), navigator.clipboard && button);
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
