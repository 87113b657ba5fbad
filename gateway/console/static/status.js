// The panel for operators: models, instances, charts, what the guards did, and restarts for admin keys.

import { request } from "./api.js";
import { chart } from "./chart.js";
import { confirmation, h } from "./dom.js";
import { language, t } from "./i18n.js";

export const id = "status";

export function models(state) {
  return state.models;
}

const LOOK = 1000; // milliseconds between two looks; a small server is back in two seconds
const CHARTS = 5; // looks between two of the charts
const WINDOW = 60; // looks that the mean wait in the queue is taken over
const EVENTS = 40;
const MINUTES = 15; // as long as the gateway remembers (gateway/console/history.py)
const KINDS = ["speech", "text", "embeddings", "search"];
const KNOWN = ["serving", "starting", "draining", "unreachable"];

const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString(language, { hourCycle: "h23" });

/** Seconds that requests waited in Triton's queue on average, between the oldest and the newest look. */
export function wait(looks) {
  const [first, last] = [looks[0], looks.at(-1)];
  const count = last.requests - first.requests;
  return count > 0 ? (last.seconds - first.seconds) / count : null;
}

function pairs(rows) {
  return h(
    "dl",
    {},
    rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

const size = (bytes) => (bytes < 1e9 ? `${Math.ceil(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`);

/** Languages by name where they are few, otherwise how many. */
function spoken(codes, names) {
  return codes.length > 4 ? String(codes.length) : codes.map((code) => names.of(code)).join(", ");
}

/** A chart with a line for each kind of request. */
function plot(title, unit, of) {
  const line = (kind) => ({ name: t(`kind.${kind}`), class: kind, of: (point) => of(point[kind]) });
  return chart(t(title), unit, MINUTES, KINDS.map(line));
}

export function mount(first, say) {
  const grid = h("div", { class: "instances" });
  const table = h("section", { class: "instances", "aria-label": t("status.models") });
  const log = h("div", { class: "scroll log", tabindex: "0", role: "region", "aria-label": t("status.log") });
  const note = h("p", { class: "hint" });
  const summary = h("p", { class: "summary", role: "status" });
  const charts = [
    plot("chart.rate", t("chart.per"), (kind) => kind.rate),
    plot("chart.failures", t("chart.per"), (kind) => kind.failures),
    plot("chart.mean", "s", (kind) => kind.mean),
    plot("chart.p95", "s", (kind) => kind.p95),
  ];
  const dialog = confirmation("restart");
  const looks = new Map();
  const cards = new Map();

  function queue(one) {
    if (!one.queue) {
      looks.delete(one.index); // a new server starts counting from zero
      return "–";
    }
    const kept = [...(looks.get(one.index) || []), one.queue].slice(-WINDOW);
    looks.set(one.index, kept.at(-1).requests < kept[0].requests ? [one.queue] : kept);
    const seconds = wait(looks.get(one.index));
    return seconds === null ? t("status.idle") : `${(seconds * 1000).toFixed(1)} ms`;
  }

  function probe({ probe: found, success_seconds_ago: ago }) {
    if (!found) return "–";
    if (found.trouble) return `${time(found.time)}: ${found.trouble}`;
    return t("status.probed", {
      at: time(found.time),
      ms: Math.round(found.seconds * 1000),
      ago: Math.round(ago),
    });
  }

  function facts(one) {
    return pairs([
      [t("model"), one.model],
      one.gpus ? ["GPU", one.gpus] : ["CPU", one.cpus.join(", ")],
      [t("status.flight"), one.in_flight ?? "–"],
      [t("status.queue"), queue(one)],
      [t("status.restarts"), one.restarts === undefined ? "–" : t("status.counts", one)],
      [t("status.probe"), probe(one)],
    ]);
  }

  /** A card of an instance; its button stays the same element, so that it keeps the focus. */
  function card(one) {
    const badge = h("span", { class: "badge" });
    const told = h("div");
    const button = h("button", { type: "button", class: "small" }, t("restart.do"));
    const element = h(
      "article",
      { class: "card instance", id: `instance-${one.index}` },
      h("header", {}, h("h3", {}, one.name), badge),
      told,
      button,
    );
    const update = (now, state) => {
      const known = KNOWN.includes(now.state) ? now.state : "unreachable";
      const alone = state.instances.filter((other) => other.model === now.model).length === 1;
      badge.className = `badge ${known}`;
      badge.textContent = t(`state.${known}`);
      told.replaceChildren(facts(now));
      button.hidden = state.operate !== "allowed";
      button.disabled = known !== "serving";
      button.onclick = () => confirm(now, alone);
    };
    return { element, update };
  }

  function confirm(one, alone) {
    const sentence = t(alone ? "restart.alone" : "restart.pool", one);
    dialog.ask(t("restart.title", one), sentence, t("restart.do"), () => restart(one));
  }

  async function restart(one) {
    try {
      await request(`/console/api/instances/${one.index}/restart`, { method: "POST" });
      say(t("restart.asked", one));
    } catch (error) {
      say(error.message, true);
    }
  }

  /** What there is to know of a model before it is used. */
  function modelCard(model) {
    const tags = (names) => names.map((name) => h("span", { class: "tag" }, name));
    const names = new Intl.DisplayNames([language], { type: "language" });
    return h(
      "article",
      { class: "card instance" },
      h("h3", {}, model.id),
      model.note && h("p", { class: "hint" }, model.note),
      pairs([
        [t("status.family"), `${model.family}, ${model.target}`],
        [t("status.precision"), model.precision || t("status.loaded")],
        [t("status.size"), size(model.size)],
        [t("status.licence"), model.licence || "–"],
        ...(model.languages.length ? [[t("status.languages"), spoken(model.languages, names)]] : []),
        [t("status.capabilities"), tags([...model.capabilities, ...(model.chat ? ["chat"] : [])])],
        [t("status.instances"), tags(model.instances.map((i) => `triton-${i}`))],
      ]),
    );
  }

  function logTable(state) {
    const events = state.instances.flatMap((one) =>
      one.events.map((event) => ({ name: one.name, ...event })),
    );
    const rows = events
      .sort((a, b) => b.time - a.time)
      .slice(0, EVENTS)
      .map(({ name, time: at, event, error, ...rest }) =>
        h(
          "tr",
          { class: error ? "bad" : "" },
          h("td", {}, time(at)),
          h("td", {}, name),
          h("td", {}, event),
          h(
            "td",
            {},
            Object.entries(rest)
              .map(([field, value]) => `${field} ${value}`)
              .join(", "),
          ),
        ),
      );
    return h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["log.time", "log.instance", "log.event", "log.detail"].map((head) =>
            h("th", { scope: "col" }, t(head)),
          ),
        ),
      ),
      h("tbody", {}, rows),
    );
  }

  /** Redraw only what has changed, so that reading and scrolling are not disturbed. */
  function replace(element, key, made) {
    const text = JSON.stringify(key);
    if (element.drawn !== text) element.replaceChildren(...[made()].flat().filter(Boolean));
    element.drawn = text;
  }

  function show(state) {
    for (const one of state.instances) {
      if (!cards.has(one.index)) {
        cards.set(one.index, card(one));
        grid.append(cards.get(one.index).element);
      }
      cards.get(one.index).update(one, state);
    }
    replace(table, state.models, () => state.models.map(modelCard));
    replace(
      log,
      state.instances.map((one) => one.events),
      () => logTable(state),
    );
    const serving = state.instances.filter((one) => one.state === "serving").length;
    replace(summary, serving, () => t("status.summary", { serving, all: state.instances.length }));
    summary.classList.toggle("bad", serving < state.instances.length);
    replace(note, state.operate, () => t(`operate.${state.operate}`));
  }

  let turn = 0;
  async function look() {
    if (!element.isConnected) return;
    if (!document.hidden && element.checkVisibility()) {
      try {
        show(await (await request("/console/api/state")).json());
        if (turn++ % CHARTS === 0) {
          const { points } = await (await request("/console/api/history")).json();
          charts.forEach((one) => one.update(points, points.at(-1)?.time || Date.now() / 1000));
        }
        if (element.away) say("");
        element.away = false;
      } catch (error) {
        element.away = true;
        say(error.message, true);
      }
    }
    setTimeout(look, LOOK);
  }

  const element = h(
    "div",
    { class: "panel" },
    summary,
    grid,
    note,
    h(
      "section",
      { class: "card" },
      h("h2", {}, t("chart.title")),
      h(
        "div",
        { class: "charts" },
        charts.map((one) => one.element),
      ),
    ),
    h("h2", {}, t("status.models")),
    table,
    h("section", { class: "card" }, h("h2", {}, t("status.log")), log),
    dialog.element,
  );
  show(first);
  setTimeout(look);
  return element;
}
