// The panel for text: what follows a prompt, or the next message of a conversation.

import { field, h, select } from "./dom.js";
import { examples, generation } from "./examples.js";
import { t } from "./i18n.js";
import { log, message, written } from "./writing.js";

export const id = "text";

/** Models that write. */
export function models(state) {
  const sees = (model) => model.capabilities.includes("pictures");
  const able = state.models.filter((model) => model.capabilities.includes("completion"));
  return [...able.filter((model) => !sees(model)), ...able.filter(sees)]; // those that need no picture first
}

const number = (properties) => h("input", { type: "number", inputmode: "decimal", ...properties });

export function mount(state, say) {
  const able = models(state);
  const talking = able.filter((model) => model.chat);
  const model = select(
    able.map(({ id: name }) => [name, name]),
    able[0].id,
  );
  const modes = [["completion", t("text.completion")], ...(talking.length ? [["chat", t("text.chat")]] : [])];
  const mode = select(modes, "completion", changed);
  const prompt = h("textarea", { rows: 4, spellcheck: false });
  const parameters = {
    max_tokens: number({ min: 1, step: 1, value: 64 }),
    min_tokens: number({ min: 0, step: 1 }),
    temperature: number({ min: 0, max: 2, step: 0.1, value: 0 }),
    top_p: number({ min: 0, max: 1, step: 0.05 }),
    seed: number({ step: 1 }),
  };
  const stops = h("input", { type: "text", autocomplete: "off" });
  const send = h("button", { type: "button", class: "primary", onclick: run }, t("text.send"));
  const stop = h("button", { type: "button", disabled: true, onclick: () => running?.abort() }, t("stop"));
  const clear = h("button", { type: "button", hidden: true, onclick: forget }, t("text.clear"));
  const output = log("output");
  const facts = h("p", { class: "facts" });
  const shown = examples();
  const label = field(t("text.prompt"), prompt, t("text.keys"));
  let running = null,
    messages = [];

  prompt.addEventListener("keydown", (event) => {
    // A message is sent by Enter; a prompt may have lines of its own.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (!chatting() && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    run();
  });

  const chatting = () => mode.value === "chat";

  function changed() {
    const offered = chatting() ? talking : able;
    const kept = offered.some((row) => row.id === model.value) ? model.value : offered[0].id;
    model.replaceChildren(
      ...offered.map(({ id: name }) => h("option", { value: name, selected: name === kept }, name)),
    );
    clear.hidden = !chatting();
    forget();
  }

  function forget() {
    messages = [];
    output.replaceChildren();
    facts.replaceChildren();
  }

  function body() {
    const given = Object.entries(parameters).filter(([, input]) => input.value !== "");
    const asked = chatting()
      ? { messages: [...messages, { role: "user", content: prompt.value }] }
      : { prompt: prompt.value };
    return {
      model: model.value,
      ...asked,
      ...Object.fromEntries(given.map(([name, input]) => [name, Number(input.value)])),
      ...(stops.value && { stop: stops.value }),
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  async function run() {
    if (running) return;
    if (!prompt.value) {
      say(t("text.empty"), true);
      prompt.focus();
      return;
    }
    const [sent, chat] = [body(), chatting()];
    const path = chat ? "/v1/chat/completions" : "/v1/completions";
    // A decoder goes on where the prompt ends; an encoder's text is another one.
    const apart = able.find((row) => row.id === sent.model).encoder ? "\n\n" : "";
    if (!chat) output.replaceChildren(h("span", { class: "given" }, sent.prompt, apart));
    else output.append(message("user", prompt.value).element);
    const line = chat && message("assistant", "");
    const answer = line ? line.said : h("span", { class: "made" });
    output.append(line ? line.element : answer);
    busy(true);
    say(t("text.writing"));
    facts.replaceChildren();
    shown.show(generation(path, sent));
    try {
      await written(path, sent, running.signal, {
        show: (piece) => {
          answer.append(piece);
          output.scrollTop = output.scrollHeight;
        },
        tell: (sentence) => facts.replaceChildren(sentence),
      });
      if (chat) prompt.value = "";
      say("");
    } catch (error) {
      const wanted = error.name === "AbortError";
      say(wanted ? t("stopped") : error.message || t("error.unreachable"), !wanted);
    } finally {
      if (chat && answer.textContent)
        messages = [...sent.messages, { role: "assistant", content: answer.textContent }];
      busy(false);
    }
  }

  function busy(yes) {
    running = yes ? new AbortController() : null;
    send.disabled = yes;
    stop.disabled = !yes;
    output.setAttribute("aria-busy", String(yes));
  }

  return h(
    "div",
    { class: "panel" },
    h(
      "section",
      { class: "card", "aria-label": t("text.ask") },
      h("div", { class: "fields" }, field(t("text.mode"), mode), field(t("model"), model)),
      label,
      h("div", { class: "row" }, send, stop, clear),
      h(
        "div",
        { class: "fields many" },
        Object.entries(parameters).map(([name, input]) => field(t(`text.${name}`), input)),
        field(t("text.stop"), stops),
      ),
    ),
    h("section", { class: "card", "aria-label": t("text.answer") }, output, facts),
    shown.element,
  );
}
