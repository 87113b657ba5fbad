// Live captions: the microphone's sound over /v1/realtime, words while somebody speaks.

import { ApiError, realtime } from "./api.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";

const RATE = 24000; // OpenAI's
const LAST_WORDS = 8000; // milliseconds for the last words
const GRACE = 300; // milliseconds
const PREFIX = "conversation.item.input_audio_transcription.";

/** A microphone, or an ApiError with the reason why there is none. */
export async function microphone() {
  if (!navigator.mediaDevices) throw new ApiError(0, t("mic.insecure"));
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch (error) {
    throw new ApiError(0, t(error.name === "NotAllowedError" ? "mic.denied" : "mic.none"));
  }
}

function base64(samples) {
  return btoa(String.fromCharCode(...new Uint8Array(samples.buffer)));
}

/** One live session. `say` shows a sentence; `ended` is called once, when nothing more will come. */
export class Captions {
  constructor(box, { model, language, prompt, say, ended }) {
    Object.assign(this, { box, model, language, prompt, say, ended });
    this.items = new Map();
  }

  async start() {
    this.stream = await microphone();
    try {
      this.context = new AudioContext({ sampleRate: RATE });
      await this.context.audioWorklet.addModule("/console/worklet.js");
      this.node = new AudioWorkletNode(this.context, "pcm", { numberOfOutputs: 0 });
      this.node.port.onmessage = ({ data }) =>
        this.send("input_audio_buffer.append", { audio: base64(data) });
      this.source = this.context.createMediaStreamSource(this.stream);
      this.socket = realtime(this.model);
    } catch (error) {
      this.release();
      throw error;
    }
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    this.socket.onclose = () => this.close(this.opened ? t("live.lost") : t("live.refused"));
  }

  send(type, fields = {}) {
    if (this.opened && this.socket.readyState === WebSocket.OPEN)
      this.socket.send(JSON.stringify({ type, ...fields }));
  }

  receive(event) {
    if (event.type === "session.created") {
      this.opened = true;
      const transcription = { language: this.language || null, prompt: this.prompt };
      const input = { format: { type: "audio/pcm", rate: RATE }, transcription };
      this.send("session.update", { session: { type: "transcription", audio: { input } } });
    } else if (event.type === "session.updated") {
      this.say("");
      this.box.replaceChildren(h("p", { class: "hint" }, t("live.listening")));
      this.source.connect(this.node);
    } else if (event.type === "input_audio_buffer.speech_started") {
      this.line(event.item_id).classList.add("listening");
    } else if (event.type === `${PREFIX}delta`) {
      this.line(event.item_id).append(event.delta);
    } else if (event.type === `${PREFIX}completed`) {
      this.finish(event.item_id, event.transcript);
    } else if (event.type === `${PREFIX}failed`) {
      this.finish(event.item_id, event.error.message);
    } else if (event.type === "input_audio_buffer.committed") {
      this.line(event.item_id);
      this.committed = this.stopping;
    } else if (event.type === "error" && this.stopping) {
      this.committed = true; // nothing was left to commit
      this.settle();
    } else if (event.type === "error") {
      this.say(event.error.message, true);
    }
  }

  line(item) {
    if (!this.items.has(item)) {
      if (!this.items.size) this.box.replaceChildren();
      this.items.set(item, h("p", { class: "going" }));
      this.box.append(this.items.get(item));
    }
    this.box.scrollTop = this.box.scrollHeight;
    return this.items.get(item);
  }

  finish(item, text) {
    const line = this.line(item);
    line.className = "";
    if (text) line.replaceChildren(text);
    else line.remove();
    this.items.set(item, null);
    this.settle();
  }

  /** When stopping: over as soon as every line has its final words; a turn that the server closed may come
   * just before the one that was committed here. */
  settle() {
    const settled = () => this.committed && [...this.items.values()].every((line) => line === null);
    if (settled()) setTimeout(() => settled() && this.close(), GRACE);
  }

  stop() {
    if (!this.opened) return this.close();
    this.stopping = true;
    this.release();
    this.send("input_audio_buffer.commit");
    this.timer = setTimeout(() => this.close(), LAST_WORDS);
  }

  release() {
    this.source?.disconnect();
    this.stream.getTracks().forEach((track) => track.stop());
    if (this.context && this.context.state !== "closed") this.context.close();
  }

  close(reason) {
    if (this.closed) return;
    this.closed = true;
    clearTimeout(this.timer);
    this.release();
    this.socket.onclose = null;
    this.socket.close();
    this.ended(reason);
  }
}
