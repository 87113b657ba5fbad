// The panel for text: what follows a prompt, or the next message of a conversation.

import { field, folded, h, number, onEnter, samples, select } from "./dom.js";
import { examples, generation } from "./examples.js";
import { t } from "./i18n.js";
import { log, Message, written } from "./writing.js";

export const id = "text";

/** Models that write; those that need no picture first. */
export function models(state) {
  const sees = (model) => model.capabilities.includes("pictures");
  const able = state.models.filter((model) => model.capabilities.includes("completion"));
  return [...able.filter((model) => !sees(model)), ...able.filter(sees)];
}

/** Prompts to try a model with: its catalogue's, or some that any model takes. */
function prompts(model, chat) {
  if (model.examples.length) return model.examples;
  return [1, 2, 3].map((n) => t(`text.${chat ? "chat" : "prompt"}${n}`));
}

export function mount(state, say) {
  const able = models(state);
  const talking = able.filter((model) => model.chat);
  const miniature = (model) => model.note.startsWith("a test model");
  const learned = talking.find((one) => !miniature(one) && !one.capabilities.includes("pictures"));
  const model = select([], "", chosen);
  const modes = [["completion", t("text.completion")], ...(talking.length ? [["chat", t("text.chat")]] : [])];
  const mode = select(modes, learned ? "chat" : "completion", changed);
  const prompt = h("textarea", { rows: 4, spellcheck: false });
  const parameters = {
    max_tokens: number({ min: 1, step: 1, value: learned ? 256 : 64 }),
    min_tokens: number({ min: 0, step: 1 }),
    temperature: number({ min: 0, max: 2, step: 0.1, value: 0 }),
    top_p: number({ min: 0, max: 1, step: 0.05 }),
    seed: number({ step: 1 }),
  };
  const stops = h("input", { type: "text", autocomplete: "off" });
  const system = h("textarea", { rows: 2, spellcheck: false });
  const systemField = field(t("text.system"), system);
  const send = h("button", { type: "button", class: "primary", onclick: () => run() }, t("text.send"));
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, t("stop"));
  const clear = h("button", { type: "button", hidden: true, onclick: forget }, t("text.clear"));
  const output = log("output");
  const facts = h("p", { class: "facts" });
  const answerCard = h(
    "section",
    { class: "card", "aria-label": t("text.answer"), hidden: true },
    output,
    facts,
  );
  const tries = samples((text) => {
    prompt.value = text;
    run();
  });
  const shown = examples();
  let running = null,
    turns = []; // Messages, of both sides

  onEnter(prompt, () => run());
  const chatting = () => mode.value === "chat";
  const of = (name) => able.find((row) => row.id === name);

  function changed() {
    const offered = chatting() ? talking : able;
    const first = (chatting() && learned) || offered[0];
    const kept = offered.find((row) => row.id === model.value) || first;
    model.replaceChildren(
      ...offered.map(({ id: name }) => h("option", { value: name, selected: name === kept.id }, name)),
    );
    clear.hidden = systemField.hidden = !chatting();
    chosen();
    forget();
  }

  function chosen() {
    tries.show(prompts(of(model.value), chatting()));
  }

  function forget() {
    running?.abort();
    turns = [];
    output.replaceChildren();
    facts.replaceChildren();
    answerCard.hidden = true;
  }

  function body() {
    const given = Object.entries(parameters).filter(([, input]) => input.value !== "");
    const told = system.value ? [{ role: "system", content: system.value }] : [];
    const messages = [...told, ...turns.map(({ role, text: content }) => ({ role, content }))];
    return {
      model: model.value,
      ...(chatting() ? { messages } : { prompt: prompt.value }),
      ...Object.fromEntries(given.map(([name, input]) => [name, Number(input.value)])),
      ...(stops.value && { stop: stops.value }),
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  async function run() {
    if (running) return;
    if (!prompt.value.trim()) {
      say(t("text.empty"), true);
      prompt.focus();
      return;
    }
    answerCard.hidden = false;
    if (chatting()) {
      put(new Message("user", prompt.value));
      prompt.value = "";
      await answer();
    } else await complete();
  }

  function put(message) {
    turns.push(message);
    output.append(message.element);
    output.scrollTop = output.scrollHeight;
    return message;
  }

  /** What follows the prompt: a decoder goes on where it ends, an encoder's text is another one. */
  async function complete() {
    const sent = body();
    const made = h("span", { class: "made" });
    const apart = of(sent.model).encoder ? "\n\n" : "";
    output.replaceChildren(h("span", { class: "given" }, sent.prompt, apart), made);
    await ask("/v1/completions", sent, (piece) => made.append(piece));
  }

  /** The next message of the conversation; a question that got neither text nor reasoning goes back to where it was typed. */
  async function answer() {
    const sent = body();
    turns.at(-2)?.offer();
    const reply = put(new Message("assistant", ""));
    await ask("/v1/chat/completions", sent, (piece) => reply.add(piece), (piece) => reply.think(piece));
    if (!turns.includes(reply)) return;
    if (reply.text || reply.thoughts)
      reply.offer(h("button", { type: "button", class: "small", onclick: () => again() }, t("text.again")));
    else {
      const [question] = turns.splice(-2);
      prompt.value ||= question.text;
      for (const message of [question, reply]) message.element.remove();
    }
  }

  /** Another answer in the place of the last one. */
  async function again() {
    if (running || turns.length < 2) return;
    turns.pop().element.remove();
    await answer();
  }

  async function ask(path, sent, show, think) {
    busy(true);
    const own = running;
    say(t("text.writing"));
    facts.replaceChildren();
    shown.show(generation(path, sent));
    try {
      await written(path, sent, own.signal, {
        show: (piece) => {
          show(piece);
          output.scrollTop = output.scrollHeight;
        },
        think,
        tell: (sentence) => facts.replaceChildren(sentence),
      });
      say("");
    } catch (error) {
      const wanted = error.name === "AbortError";
      say(wanted ? t("stopped") : error.message || t("error.unreachable"), !wanted);
    } finally {
      busy(false);
    }
  }

  function busy(yes) {
    running = yes ? new AbortController() : null;
    send.disabled = yes;
    stop.hidden = !yes;
    output.setAttribute("aria-busy", String(yes));
    output.setAttribute("aria-live", yes ? "off" : "polite");
  }

  const element = h(
    "div",
    { class: "panel" },
    h(
      "section",
      { class: "card", "aria-label": t("text.ask") },
      h("div", { class: "fields" }, field(t("text.mode"), mode), field(t("model"), model)),
      field(t("text.prompt"), prompt, t("text.keys")),
      tries.element,
      h("div", { class: "row" }, send, stop, clear),
      folded(
        systemField,
        h(
          "div",
          { class: "fields many" },
          Object.entries(parameters).map(([name, input]) => field(t(`text.${name}`), input)),
          field(t("text.stop"), stops),
        ),
      ),
    ),
    answerCard,
    shown.element,
  );
  changed();
  return element;
}
