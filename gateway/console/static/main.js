// The page: which panels there are, the key, language and theme.

import { key, onRefused, request } from "./api.js";
import { field, h, select } from "./dom.js";
import { LANGUAGES, choose, language, t } from "./i18n.js";
import * as pictures from "./pictures.js";
import * as search from "./search.js";
import * as speech from "./speech.js";
import * as status from "./status.js";
import * as text from "./text.js";

// A panel: an id, models(state) that it can work with (none: it is not shown), and mount(state, say), which
// makes its element.
const PANELS = [speech, text, pictures, search, status];
const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("conch-theme", name);
}

function keyDialog(changed) {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: false });
  const trouble = h("p", { class: "trouble", role: "alert" });
  const dialog = h("dialog", { "aria-labelledby": "key-title" });
  const submit = (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    dialog.close();
    changed();
  };
  dialog.append(
    h(
      "form",
      { method: "dialog", onsubmit: submit },
      h("h2", { id: "key-title" }, t("key.title")),
      field(t("key.label"), input, t("key.kept")),
      trouble,
      h(
        "div",
        { class: "row" },
        h("button", { type: "submit", class: "primary" }, t("key.use")),
        h("button", { type: "button", onclick: () => dialog.close() }, t("cancel")),
      ),
    ),
  );
  const open = (message = "") => {
    trouble.textContent = message;
    input.value = key.get();
    if (!dialog.open) dialog.showModal();
    input.focus();
  };
  return { element: dialog, open };
}

function shell() {
  document.documentElement.lang = language;
  const nav = h("nav", { "aria-label": t("nav") });
  const message = h("p", { class: "message-bar", role: "status", hidden: true });
  const main = h("main", { id: "main" });
  const say = (sentence, bad = false) => {
    message.textContent = sentence;
    message.hidden = !sentence;
    message.classList.toggle("bad", bad);
  };
  const dialog = keyDialog(() => begin());
  const themes = select(
    THEMES.map((name) => [name, t(`theme.${name}`)]),
    localStorage.getItem("conch-theme") || "auto",
    (event) => theme(event.target.value),
  );
  const languages = select(LANGUAGES, language, (event) => choose(event.target.value));
  themes.setAttribute("aria-label", t("theme"));
  languages.setAttribute("aria-label", t("language"));
  const controls = h(
    "div",
    { class: "controls" },
    languages,
    themes,
    h("button", { type: "button", class: "small", onclick: () => dialog.open() }, t("key.button")),
  );
  const brand = h(
    "a",
    { class: "brand", href: "/" },
    h("img", { src: "/console/icon.svg", alt: "", width: 26, height: 26 }),
    "Conch",
  );
  document.body.replaceChildren(
    h(
      "a",
      {
        class: "skip",
        href: "#main",
        onclick: (event) => {
          event.preventDefault();
          main.tabIndex = -1;
          main.focus();
        },
      },
      t("skip"),
    ),
    h("header", { class: "top" }, brand, nav, controls),
    message,
    main,
    dialog.element,
  );
  onRefused((sentence) => {
    if (!key.get()) dialog.open(t("key.needed"));
    else dialog.open(sentence);
  });

  async function begin() {
    main.replaceChildren(h("p", { class: "hint" }, t("loading")));
    nav.replaceChildren();
    say("");
    try {
      const state = await (await request("/console/api/state")).json();
      build(
        PANELS.filter((panel) => panel.models(state).length),
        state,
      );
    } catch (error) {
      main.replaceChildren(h("p", { class: "hint" }, t("nothing")));
      if (error.status === 401 && !key.get()) return; // the dialog asks for one
      say(error.message, true);
      if (error.status !== 401) setTimeout(begin, 3000);
    }
  }

  function build(panels, state) {
    const made = new Map();
    main.replaceChildren(h("h1", { class: "visually-hidden" }, "Conch"));
    const links = panels.map((panel) => h("a", { href: `#${panel.id}` }, t(`panel.${panel.id}`)));
    nav.replaceChildren(...links);
    const go = () => {
      const wanted = panels.find((panel) => `#${panel.id}` === location.hash) || panels[0];
      if (!made.has(wanted)) {
        made.set(
          wanted,
          h(
            "div",
            { class: "page", id: wanted.id },
            h("h2", { class: "title" }, t(`panel.${wanted.id}`)),
            h("p", { class: "lead" }, t(`lead.${wanted.id}`)),
            wanted.mount(state, say),
          ),
        );
        main.append(made.get(wanted));
      }
      for (const [panel, page] of made) page.hidden = panel !== wanted;
      panels.forEach((panel, i) =>
        panel === wanted
          ? links[i].setAttribute("aria-current", "page")
          : links[i].removeAttribute("aria-current"),
      );
      document.title = `Conch: ${t(`panel.${wanted.id}`)}`;
      say("");
    };
    onhashchange = go;
    go();
  }

  begin();
}

theme(localStorage.getItem("conch-theme") || "auto");
shell();
