// The panel for pictures: questions about them, and their answers as they come.

import { field, folded, h, number, onEnter, samples, select } from "./dom.js";
import { examples, generation } from "./examples.js";
import { t } from "./i18n.js";
import { dropzone, part, pasted, Shot, thumbnail } from "./images.js";
import { log, Message, written } from "./writing.js";

export const id = "pictures";

const PATH = "/v1/chat/completions";
const SAMPLE = "sample.png"; // a green triangle and a green diamond

/** Models that look at pictures and answer. */
export function models(state) {
  return state.models.filter((model) => model.capabilities.includes("pictures") && model.chat);
}

export function mount(state, say) {
  const able = models(state);
  const model = select(
    able.map(({ id: name }) => [name, name]),
    able[0].id,
    () => tries.show(questions()),
  );
  const drop = dropzone(
    {
      id: "pictures-file",
      title: t("pictures.drop"),
      hint: t("pictures.kinds"),
      accept: "image/*",
      multiple: true,
    },
    take,
  );
  const shots = h("ul", { class: "shots", "aria-label": t("pictures.chosen"), hidden: true });
  const question = h("textarea", { rows: 2 });
  const parameters = {
    max_tokens: number({ min: 1, step: 1, value: 64 }),
    temperature: number({ min: 0, max: 2, step: 0.1, value: 0 }),
  };
  const send = h("button", { type: "button", class: "primary", onclick: run }, t("pictures.ask"));
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, t("stop"));
  const clear = h("button", { type: "button", onclick: forget }, t("text.clear"));
  const output = log("pictures-output");
  const facts = h("p", { class: "facts" });
  const answerCard = h(
    "section",
    { class: "card", "aria-label": t("text.answer"), hidden: true },
    output,
    facts,
  );
  const example = h("button", { type: "button", onclick: sampled }, t("pictures.sample"));
  const tries = samples((text) => {
    question.value = text;
    run();
  });
  const shown = examples();
  let running = null,
    waiting = [],
    messages = [];

  onEnter(question, run);

  function questions() {
    const { examples: own } = able.find((row) => row.id === model.value);
    return own.length ? own : [t("pictures.question1"), t("pictures.question2")];
  }

  async function sampled() {
    const file = await (await fetch(`/console/${SAMPLE}`)).blob();
    await take([new File([file], SAMPLE, { type: file.type })]);
  }

  async function take(files) {
    const wrong = files.find((file) => !file.type.startsWith("image/"));
    if (wrong) {
      say(t("pictures.none", { name: wrong.name }), true);
      return;
    }
    try {
      waiting.push(...(await Promise.all(files.map(Shot.of))));
      say("");
    } catch (error) {
      say(error.message, true);
    }
    draw();
  }

  function draw() {
    shots.hidden = !waiting.length;
    shots.replaceChildren(...waiting.map(chosen));
  }

  function chosen(shot) {
    const drops = () => {
      waiting = waiting.filter((other) => other !== shot);
      draw();
      question.focus();
    };
    const name = t("pictures.remove", { name: shot.name });
    const button = h("button", { type: "button", class: "small", "aria-label": name, onclick: drops }, "×");
    return h("li", {}, thumbnail(shot.file, shot.name), button);
  }

  function forget() {
    running?.abort();
    messages = [];
    output.replaceChildren();
    facts.replaceChildren();
    answerCard.hidden = true;
  }

  function body(content) {
    const given = Object.entries(parameters).filter(([, input]) => input.value !== "");
    return {
      model: model.value,
      messages: [...messages, { role: "user", content }],
      ...Object.fromEntries(given.map(([name, input]) => [name, Number(input.value)])),
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  function missing() {
    if (!question.value.trim()) return ["pictures.empty", question];
    const any = waiting.length || messages.some((row) => row.role === "user");
    return any ? null : ["pictures.first", drop.querySelector("input")];
  }

  async function run() {
    if (running) return;
    const lack = missing();
    if (lack) {
      say(t(lack[0]), true);
      lack[1].focus();
      return;
    }
    const [asked, about] = [question.value, waiting];
    const sent = body([...about.map(part), { type: "text", text: asked }]);
    const views = h(
      "div",
      { class: "shots" },
      about.map((shot) => thumbnail(shot.file, shot.name)),
    );
    const mine = new Message("user", asked, about.length > 0 && views);
    const answer = new Message("assistant", "");
    answerCard.hidden = false;
    output.append(mine.element, answer.element);
    output.scrollTop = output.scrollHeight;
    busy(true);
    say(t("pictures.looking"));
    facts.replaceChildren();
    shown.show(generation(PATH, sent));
    try {
      await written(PATH, sent, running.signal, {
        show: (piece) => {
          answer.add(piece);
          output.scrollTop = output.scrollHeight;
        },
        tell: (sentence) => facts.replaceChildren(sentence),
      });
      say("");
    } catch (error) {
      const wanted = error.name === "AbortError";
      say(wanted ? t("stopped") : error.message || t("error.unreachable"), !wanted);
    } finally {
      ended(sent, mine, answer);
      busy(false);
    }
  }

  /** What was answered, if only its beginning, is part of the conversation; a question without an answer
   * stays where it was typed. */
  function ended(sent, mine, answer) {
    const text = answer.text.trim();
    if (!text || !output.contains(answer.element)) {
      mine.element.remove();
      answer.element.remove();
      return;
    }
    answer.offer();
    messages = [...sent.messages, { role: "assistant", content: text }];
    waiting = [];
    question.value = "";
    draw();
  }

  function busy(yes) {
    running = yes ? new AbortController() : null;
    send.disabled = yes;
    stop.hidden = !yes;
    output.setAttribute("aria-busy", String(yes));
    output.setAttribute("aria-live", yes ? "off" : "polite");
  }

  tries.show(questions());
  const element = h(
    "div",
    { class: "panel" },
    h(
      "section",
      { class: "card", "aria-label": t("text.ask") },
      drop,
      shots,
      h("div", { class: "spaced" }, field(t("pictures.question"), question, t("text.keys"))),
      tries.element,
      h("div", { class: "row" }, send, stop, clear, example),
      folded(
        h(
          "div",
          { class: "fields" },
          field(t("model"), model),
          Object.entries(parameters).map(([name, input]) => field(t(`text.${name}`), input)),
        ),
      ),
    ),
    answerCard,
    shown.element,
  );
  pasted(element, take);
  return element;
}
