// Files that are dropped, pasted or chosen, and pictures among them.

import { h } from "./dom.js";

const KINDS = { png: "png", jpg: "jpeg", jpeg: "jpeg", webp: "webp", gif: "gif", bmp: "bmp" };
export const ACCEPTED = Object.keys(KINDS)
  .map((suffix) => `.${suffix}`)
  .join();

/** The kind of a picture by its file's name, as vector stores tell them; undefined for what is none. */
export function kindOf(name) {
  const suffix = name.toLowerCase().match(/\.(\w+)$/)?.[1];
  return KINDS[suffix] && `image/${KINDS[suffix]}`;
}

/** A picture that goes into a request: in JSON it is its data URL. */
export class Shot {
  constructor(file, url) {
    Object.assign(this, { file, url, name: file.name, type: file.type });
  }

  static async of(file) {
    const typed = file.type ? file : new File([file], file.name, { type: kindOf(file.name) });
    const url = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(typed);
    });
    return new Shot(typed, url);
  }

  toJSON() {
    return this.url;
  }
}

/** A part of a message, as chat and searches have it. */
export function part(shot) {
  return { type: "image_url", image_url: { url: shot } };
}

/** A small view of a picture; `blob`: its bytes. */
export function thumbnail(blob, name) {
  const url = URL.createObjectURL(blob);
  const forget = () => URL.revokeObjectURL(url);
  return h("img", { class: "thumb", src: url, alt: name, title: name, onload: forget, onerror: forget });
}

/** Where files are dropped or chosen: `take` gets them as a list, never an empty one. */
export function dropzone({ id, title, hint, ...input }, take) {
  const taken = (files) => files?.length && take([...files]);
  const chosen = () => {
    taken(control.files);
    control.value = ""; // so that the same file can be chosen again
  };
  const control = h("input", { type: "file", id, onchange: chosen, ...input });
  const label = h(
    "label",
    { class: "drop", for: id },
    control,
    h("strong", {}, title),
    hint && h("span", {}, hint),
  );
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"])
    label.addEventListener(kind, (event) => {
      event.preventDefault();
      label.classList.toggle("over", kind === "dragenter" || kind === "dragover");
    });
  label.addEventListener("drop", (event) => taken(event.dataTransfer.files));
  return label;
}

/** Call `take` with pictures that are pasted while `element` is to be seen. */
export function pasted(element, take) {
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files || [])].filter((file) => file.type.startsWith("image/"));
    if (!files.length || !element.checkVisibility()) return;
    event.preventDefault();
    take(files);
  });
}
