// The panel for speech: a file, a recording, or live captions.

import { sent } from "./api.js";
import { Captions, microphone } from "./captions.js";
import { copier, download, field, folded, h, select } from "./dom.js";
import { examples, live, recording } from "./examples.js";
import { language as ui, t } from "./i18n.js";
import { dropzone } from "./images.js";
import { Player } from "./player.js";
import { srt, turns, vtt } from "./subtitles.js";

export const id = "speech";

const SAMPLE = "sample.flac"; // English, spoken by a synthetic voice

/** Models that transcribe. */
export function models(state) {
  return state.models.filter((model) => model.capabilities.includes("transcription"));
}

function languages(codes) {
  const names = new Intl.DisplayNames([ui], { type: "language" });
  const pairs = codes.map((code) => [code, names.of(code)]).sort((a, b) => a[1].localeCompare(b[1], ui));
  return [["", t("speech.detect")], ...pairs];
}

export function mount(state, say) {
  const able = models(state);
  const model = select(
    able.map(({ id: name }) => [name, name]),
    able[0].id,
    offer,
  );
  const language = select([], "");
  const task = select(
    [
      ["transcribe", t("speech.transcribe")],
      ["translate", t("speech.translate")],
    ],
    "transcribe",
  );
  const prompt = h("input", {
    type: "text",
    maxlength: 800,
    autocomplete: "off",
    placeholder: t("speech.names"),
  });
  const drop = dropzone(
    { id: "file", title: t("speech.drop"), hint: t("speech.kinds"), accept: "audio/*,video/*" },
    ([file]) => take(file),
  );
  const record = h("button", { type: "button", onclick: toggleRecording }, t("speech.record"));
  const captions = h("button", { type: "button", onclick: toggleCaptions }, t("speech.live"));
  const again = h(
    "button",
    { type: "button", class: "primary", hidden: true, onclick: () => transcribe() },
    t("speech.again"),
  );
  const stop = h("button", { type: "button", hidden: true, onclick: () => running.abort() }, t("stop"));
  const player = new Player(renamed);
  const apart = state.models.some((one) => one.capabilities.includes("diarization"));
  const speakers = h("input", { type: "checkbox", checked: apart });
  const facts = h("p", { class: "facts" });
  const files = h(
    "div",
    { class: "row", hidden: true },
    ["srt", "vtt", "txt"].map((kind) =>
      h("button", { type: "button", class: "small", onclick: () => save(kind) }, t("download", { kind })),
    ),
  );
  const copy = copier(() => transcript.text);
  if (copy) files.prepend(copy);
  const sample = h("button", { type: "button", onclick: sampled }, t("speech.sample"));
  const progress = h("progress", { "aria-label": t("speech.progress"), hidden: true });
  const elapsed = h("p", { class: "hint", hidden: true });
  const box = h("div", {
    class: "captions",
    role: "log",
    "aria-live": "polite",
    "aria-label": t("speech.live"),
    tabindex: "0",
    hidden: true,
  });
  const result = h(
    "section",
    { class: "card", hidden: true, "aria-label": t("speech.result") },
    player.element,
    player.words,
    facts,
    files,
  );
  const shown = examples();
  let sound = null,
    transcript = null,
    running = null,
    recorder = null,
    session = null,
    timer = null;
  const speeds = new Map(); // seconds of sound transcribed in a second, by model

  /** What the model can: a model for English alone has no other language, and translates nothing. */
  function offer() {
    const known = able.find((row) => row.id === model.value).languages;
    const english = known.length === 1;
    const kept = english || known.includes(language.value) ? language.value : "";
    language.replaceChildren(
      ...languages(known.length ? known : state.languages).map(([value, name]) =>
        h("option", { value, selected: value === kept }, name),
      ),
    );
    if (english) task.value = "transcribe";
    task.disabled = english;
  }

  async function sampled() {
    const file = await (await fetch(`/console/${SAMPLE}`)).blob();
    take(new File([file], SAMPLE, { type: file.type }));
  }

  /** How far an upload is; then how far the transcription must be, where an earlier one told how fast it is. */
  function moved(part) {
    if (part < 1) {
      progress.value = part;
      elapsed.replaceChildren(t("speech.uploading", { percent: Math.floor(part * 100) }));
      return;
    }
    progress.removeAttribute("value");
    const began = performance.now();
    const tick = () => {
      const seconds = (performance.now() - began) / 1000;
      const expected = player.audio.duration / speeds.get(model.value);
      if (expected > 2) progress.value = Math.min(0.98, seconds / expected);
      elapsed.replaceChildren(t("speech.since", { seconds: Math.floor(seconds) }));
    };
    tick();
    clearInterval(timer);
    timer = setInterval(tick, 500);
  }

  function take(chosen) {
    if (chosen.size > state.max_upload_bytes) {
      say(t("speech.large", { name: chosen.name, most: Math.floor(state.max_upload_bytes / 1e6) }), true);
      return;
    }
    sound = chosen;
    result.hidden = again.hidden = false;
    box.hidden = true;
    player.load(sound);
    result.scrollIntoView({ block: "nearest" });
    transcribe();
  }

  function form() {
    const words = able.find((row) => row.id === model.value).capabilities.includes("word_timestamps");
    const timed = task.value === "transcribe" ? ["segment", ...(words ? ["word"] : [])] : [];
    return [
      ["model", model.value],
      ["response_format", "verbose_json"],
      ...timed.map((kind) => ["timestamp_granularities[]", kind]),
      ...(apart && timed.length && speakers.checked ? [["diarize", "true"]] : []),
      ...(language.value ? [["language", language.value]] : []),
      ...(prompt.value ? [["prompt", prompt.value]] : []),
    ];
  }

  async function transcribe() {
    running?.abort();
    const own = (running = new AbortController());
    const [fields, started, done] = [form(), performance.now(), task.value];
    const body = new FormData();
    for (const [name, value] of fields) body.append(name, value);
    body.append("file", sound, sound.name);
    busy(true);
    say(t("speech.working"));
    moved(0);
    player.words.replaceChildren();
    facts.replaceChildren();
    files.hidden = true;
    const path = `/v1/audio/${done === "translate" ? "translations" : "transcriptions"}`;
    try {
      transcript = await sent(path, body, { signal: own.signal, moved });
      if (new Set(transcript.segments.map(({ speaker }) => speaker)).size === 1)
        for (const row of rows()) delete row.speaker;
      const seconds = (performance.now() - started) / 1000;
      speeds.set(model.value, transcript.duration / seconds);
      player.tell(transcript);
      files.hidden = false;
      facts.replaceChildren(told(transcript, seconds));
      say(transcript.text ? "" : t("speech.silence"));
    } catch (error) {
      if (own !== running) return;
      say(error.name === "AbortError" ? t("stopped") : error.message, error.name !== "AbortError");
    } finally {
      if (own === running) busy(false);
      shown.show(recording(done, sound.name, fields));
    }
  }

  function rows() {
    return [...transcript.segments, ...(transcript.words || [])];
  }

  /** Another name for a speaker, in what is shown and saved. */
  function renamed(speaker) {
    const name = window.prompt(t("speech.rename"), speaker)?.trim();
    if (!name) return;
    for (const row of rows()) if (row.speaker === speaker) row.speaker = name;
    player.tell(transcript);
  }

  function told({ language: spoken, duration }, seconds) {
    const speed = (duration / seconds).toFixed(1);
    return t("speech.facts", { spoken, duration: duration.toFixed(1), seconds: seconds.toFixed(2), speed });
  }

  function busy(yes) {
    clearInterval(timer);
    stop.hidden = progress.hidden = elapsed.hidden = !yes;
    again.disabled = yes;
    result.setAttribute("aria-busy", String(yes));
  }

  function save(kind) {
    const name = `${sound.name.replace(/\.[^.]*$/, "") || "transcript"}.${kind}`;
    const text = {
      srt: () => srt(transcript.segments),
      vtt: () => vtt(transcript.segments),
      txt: () => (transcript.segments[0]?.speaker ? turns(transcript.segments) : `${transcript.text}\n`),
    }[kind]();
    download(name, text, kind === "vtt" ? "text/vtt" : "text/plain");
  }

  async function toggleRecording() {
    if (recorder) {
      recorder.stop();
      return;
    }
    try {
      const stream = await microphone();
      const pieces = [];
      recorder = new MediaRecorder(stream);
      recorder.ondataavailable = ({ data }) => pieces.push(data);
      recorder.onstop = () => {
        stream.getTracks().forEach((track) => track.stop());
        const type = recorder.mimeType;
        recorder = null;
        pressed(record, false, "speech.record", captions);
        take(new File(pieces, `recording.${type.includes("mp4") ? "mp4" : "webm"}`, { type }));
      };
      recorder.start();
      pressed(record, true, "speech.recordstop", captions);
      say(t("speech.recording"));
    } catch (error) {
      say(error.message, true);
    }
  }

  async function toggleCaptions() {
    if (session) {
      captions.disabled = true;
      session.stop();
      return;
    }
    box.hidden = false;
    result.hidden = again.hidden = true;
    box.replaceChildren();
    box.scrollIntoView({ block: "nearest" });
    say(t("live.connecting"));
    const options = { model: model.value, language: language.value, prompt: prompt.value, say };
    session = new Captions(box, { ...options, ended: (reason) => ended(reason) });
    pressed(captions, true, "speech.livestop", record);
    shown.show(live(model.value, language.value));
    try {
      await session.start();
    } catch (error) {
      ended(error.message);
    }
  }

  function ended(reason) {
    session = null;
    captions.disabled = false;
    pressed(captions, false, "speech.live", record);
    say(reason || t("live.over"), Boolean(reason));
  }

  /** While one of the two has the microphone, the other waits. */
  function pressed(button, yes, text, other) {
    button.textContent = t(text);
    button.classList.toggle("on", yes);
    button.setAttribute("aria-pressed", String(yes));
    other.disabled = yes;
  }

  offer();
  return h(
    "div",
    { class: "panel" },
    h(
      "section",
      { class: "card", "aria-label": t("speech.source") },
      drop,
      h("div", { class: "row" }, record, captions, sample, again, stop),
      progress,
      elapsed,
      !window.isSecureContext && h("p", { class: "hint" }, t("mic.where")),
      apart && h("label", { class: "check" }, speakers, " ", t("speech.speakers")),
      folded(
        h(
          "div",
          { class: "fields" },
          field(t("model"), model),
          field(t("speech.language"), language),
          field(t("speech.task"), task),
          field(t("speech.prompt"), prompt),
        ),
      ),
    ),
    box,
    result,
    shown.element,
  );
}
