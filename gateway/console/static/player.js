// A recording: its peaks on a canvas, and its words, which light up while it plays.

import { h } from "./dom.js";
import { t } from "./i18n.js";

const DECODED_BYTES = 25e6; // larger files are not decoded for a picture; they may be hours
const RATE = 8000;
const BAR = 3; // pixels, with the gap
const COLOURS = 6; // of speakers, in console.css

/** The loudest sample in each of `count` equal parts, 0 to 1; none if the browser cannot decode the file. */
export async function peaks(file, count) {
  if (file.size > DECODED_BYTES) return [];
  try {
    const context = new OfflineAudioContext(1, 1, RATE);
    const samples = (await context.decodeAudioData(await file.arrayBuffer())).getChannelData(0);
    const size = samples.length / count;
    return Array.from({ length: count }, (_, i) => {
      let most = 0;
      for (let at = Math.floor(i * size); at < (i + 1) * size; at++)
        most = Math.max(most, Math.abs(samples[at]));
      return most;
    });
  } catch {
    return [];
  }
}

/** Words where they stand in the text: [before, word] pairs, and what follows the last. */
export function placed(text, words) {
  let at = 0;
  const pairs = words.map((word) => {
    const said = word.word.trim();
    const found = text.indexOf(said, at);
    const before = found < 0 ? " " : text.slice(at, found);
    if (found >= 0) at = found + said.length;
    return [before, said, word];
  });
  return [pairs, text.slice(at)];
}

export class Player {
  /** `rename` is asked for a speaker's other name. */
  constructor(rename = () => {}) {
    this.rename = rename;
    this.audio = h("audio", { controls: true, preload: "metadata", "aria-label": t("speech.sound") });
    this.canvas = h("canvas", {
      class: "peaks",
      "aria-hidden": "true",
      onclick: (event) => this.seek(event),
    });
    this.words = h("p", { class: "transcript", id: "transcript" });
    this.element = h("div", { class: "player" }, this.canvas, this.audio);
    this.bars = [];
    this.units = [];
    this.audio.addEventListener("timeupdate", () => this.light());
    this.audio.addEventListener("seeked", () => this.light());
    this.audio.addEventListener("play", () => this.follow());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** Show a file, or a recording. */
  async load(file) {
    URL.revokeObjectURL(this.audio.src);
    this.file = file;
    this.audio.src = URL.createObjectURL(file);
    this.clear();
    const bars = await peaks(file, Math.max(40, Math.floor(this.canvas.clientWidth / BAR)));
    if (this.file !== file) return;
    this.bars = bars;
    this.draw();
  }

  clear() {
    this.bars = [];
    this.units = [];
    this.words.replaceChildren();
    this.draw();
  }

  /** The transcript: words with times where there are some, else segments. */
  tell(transcript) {
    const units = transcript.words || transcript.segments.map((row) => ({ ...row, word: row.text }));
    const [pairs, rest] = placed(transcript.text, units);
    const speakers = [...new Set(units.map(({ speaker }) => speaker))];
    const colour = (speaker) => (speaker ? ` speaker-${speakers.indexOf(speaker) % COLOURS}` : "");
    this.units = pairs.map(([, said, { start, end, speaker }]) => ({
      start,
      end,
      span: h("span", { class: `word${colour(speaker)}`, onclick: () => this.jump(start) }, said),
    }));
    const turn = (speaker) =>
      h(
        "button",
        {
          type: "button",
          class: `speaker${colour(speaker)}`,
          title: t("speech.rename"),
          onclick: () => this.rename(speaker),
        },
        speaker,
      );
    const begins = (i) => pairs[i][2].speaker !== pairs[i - 1]?.[2].speaker;
    this.words.replaceChildren(
      ...pairs.flatMap(([before, , { speaker }], i) => {
        const [, end, start] = /^(\S*)(.*)$/s.exec(before); // a full stop is the last speaker's
        return speaker && begins(i) ? [end, turn(speaker), start, this.units[i].span] : [before, this.units[i].span];
      }),
      rest,
    );
    this.light();
  }

  jump(seconds) {
    this.audio.currentTime = seconds;
    this.audio.play();
  }

  seek(event) {
    if (this.audio.duration)
      this.audio.currentTime = (event.offsetX / this.canvas.clientWidth) * this.audio.duration;
  }

  /** Often, while it plays: four times a second, as timeupdate comes, a short word would be skipped. */
  follow() {
    this.light();
    if (!this.audio.paused) requestAnimationFrame(() => this.follow());
  }

  light() {
    const now = this.audio.currentTime;
    for (const { start, end, span } of this.units) span.classList.toggle("now", start <= now && now < end);
    this.draw();
  }

  draw() {
    const { canvas, bars } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const style = getComputedStyle(canvas);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const played = this.audio.duration ? this.audio.currentTime / this.audio.duration : 0;
    const count = bars.length || Math.floor(width / BAR);
    for (let i = 0; i < count; i++) {
      const size = Math.max(2, (bars[i] || 0) * height * 0.95);
      context.fillStyle = i / count < played ? style.color : style.caretColor;
      context.fillRect((i * width) / count, (height - size) / 2, Math.max(1, width / count - 1), size);
    }
  }
}
