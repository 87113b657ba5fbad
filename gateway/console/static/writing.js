// Texts that models write, as they come: what the panels for text and for pictures share.

import { ApiError, events, request } from "./api.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";

/** Where what is said appears. */
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

/** A message of a conversation; `said` is the element of its text. */
export function message(role, text, ...others) {
  const said = h("span", {}, text);
  return {
    said,
    element: h("div", { class: `message ${role}` }, h("b", {}, t(`text.${role}`)), [others, said]),
  };
}

/** Ask for a text: `show` gets each piece, `tell` a sentence with counts and times at the end.
 *
 * Throws an ApiError where nothing was said, and an AbortError where `signal` stopped it.
 */
export async function written(path, sent, signal, { show, tell }) {
  const started = performance.now();
  let first = null;
  const options = {
    method: "POST",
    body: JSON.stringify(sent),
    headers: { "Content-Type": "application/json" },
    signal,
  };
  for await (const event of events(await request(path, options))) {
    const choice = event.choices?.[0];
    const piece = choice?.text ?? choice?.delta?.content;
    if (piece) {
      first ??= performance.now();
      show(piece);
    }
    if (event.usage) tell(facts(event.usage, started, first));
  }
  if (signal.aborted) throw new DOMException("", "AbortError");
  if (first === null) throw new ApiError(200, t("text.nothing"));
}

function facts({ prompt_tokens: read, completion_tokens: made }, started, first) {
  const now = performance.now();
  const wait = Math.round((first ?? now) - started);
  return t("text.facts", { read, made, wait, rate: (made / ((now - started) / 1000)).toFixed(1) });
}
