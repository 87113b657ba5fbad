// Texts that models write, as they come: what the panels for text and for pictures share.

import { ApiError, events, request } from "./api.js";
import { copier, h } from "./dom.js";
import { t } from "./i18n.js";
import { markdown } from "./markdown.js";

/** Where answers appear. */
export function log(id) {
  return h("div", {
    class: "output",
    id,
    role: "log",
    "aria-live": "polite",
    "aria-label": t("text.answer"),
    tabindex: "0",
  });
}

/** A message of a conversation. `text`: all of it, as it was written; `add` appends a piece, `think` one of the
 * reasoning before it, `offer` puts buttons below it. What a model writes is shown as Markdown. */
export class Message {
  constructor(role, text, ...others) {
    this.role = role;
    this.text = text;
    this.body = h("div", { class: "body" }, text);
    this.buttons = h("div", { class: "row", hidden: true });
    this.element = h(
      "div",
      { class: `message ${role}` },
      h("b", {}, t(`text.${role}`)),
      h("div", {}, others, this.body, this.buttons),
    );
  }

  add(piece) {
    this.text = (this.text + piece).replace(/^\s+/, "");
    this.drawing ??= requestAnimationFrame(() => this.draw());
  }

  think(piece) {
    if (!this.thoughts) {
      this.thoughts = h("div", { class: "body" });
      this.body.before(h("details", {}, h("summary", {}, t("text.reasoning")), this.thoughts));
    }
    this.thoughts.append(piece);
  }

  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = undefined;
    this.body.replaceChildren(...markdown(this.text));
  }

  /** Buttons of a whole answer: copy, and what else is given. */
  offer(...buttons) {
    this.draw();
    this.buttons.hidden = false;
    this.buttons.replaceChildren(...[copier(() => this.text), ...buttons].filter(Boolean));
  }
}

/** Ask for a text: `show` gets each piece, `think` each of the reasoning before it, `tell` a sentence with counts and
 * times at the end.
 *
 * Throws an ApiError where no text came, and an AbortError where `signal` stopped it.
 */
export async function written(path, sent, signal, { show, think, tell }) {
  const started = performance.now();
  let first = null;
  let empty = true;
  const options = {
    method: "POST",
    body: JSON.stringify(sent),
    headers: { "Content-Type": "application/json" },
    signal,
  };
  for await (const event of events(await request(path, options))) {
    const choice = event.choices?.[0];
    const piece = choice?.text ?? choice?.delta?.content;
    const thought = choice?.delta?.reasoning_content;
    if (piece || thought) first ??= performance.now();
    if (thought) think?.(thought);
    if (piece) {
      empty = false;
      show(piece);
    }
    if (event.usage) tell(facts(event.usage, started, first));
  }
  if (signal.aborted) throw new DOMException("", "AbortError");
  if (empty) throw new ApiError(200, t("text.nothing"));
}

function facts({ prompt_tokens: read, completion_tokens: made }, started, first) {
  const now = performance.now();
  const wait = Math.round((first ?? now) - started);
  return t("text.facts", { read, made, wait, rate: (made / ((now - started) / 1000)).toFixed(1) });
}
