// Elements without markup in strings: everything that a model or a user says is text, never HTML.

import { t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** An HTML element: attributes and listeners ("onclick") by name, then its children. */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

let ids = 0;

/** A form field with its label above it. */
export function field(label, control, hint) {
  control.id ||= `f${++ids}`;
  const note = hint && h("small", { id: `${control.id}-hint` }, hint);
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

/** A select with [value, text] pairs. */
export function select(pairs, chosen, onchange) {
  const options = pairs.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("select", { onchange }, options);
}

/** A field for a number. */
export function number(properties) {
  return h("input", { type: "number", inputmode: "decimal", ...properties });
}

/** Call `send` on Enter; Shift+Enter begins a line. */
export function onEnter(input, send) {
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
}

/** Options that few change, folded away. */
export function folded(...children) {
  return h("details", { class: "options" }, h("summary", {}, t("options")), children);
}

/** Texts to click, each of which is given to `take`; `show` replaces them. */
export function samples(take) {
  const element = h("div", { class: "row samples", role: "group", "aria-label": t("samples") });
  const button = (text) =>
    h("button", { type: "button", class: "small", title: text, onclick: () => take(text) }, text);
  return { element, show: (texts) => element.replaceChildren(...texts.map(button)) };
}

/** A button that copies what `text` returns; none where the browser has no clipboard for this page. */
export function copier(text) {
  if (!navigator.clipboard) return null;
  const button = h("button", { type: "button", class: "small" }, t("copy"));
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = t("copied");
    setTimeout(() => (button.textContent = t("copy")), 2000);
  });
  return button;
}

/** Offer bytes as a download. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A dialog that asks before something is done: `ask` gets its title, a sentence, the button's text, and what
 * then runs. */
export function confirmation(id) {
  const dialog = h("dialog", { "aria-labelledby": `${id}-title` });
  const ask = (title, sentence, action, run) => {
    const agreed = () => {
      dialog.close();
      run();
    };
    dialog.replaceChildren(
      h("h2", { id: `${id}-title` }, title),
      h("p", {}, sentence),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", class: "primary", onclick: agreed }, action),
        h("button", { type: "button", onclick: () => dialog.close() }, t("cancel")),
      ),
    );
    dialog.showModal();
  };
  return { element: dialog, ask };
}
