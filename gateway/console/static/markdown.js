// What chat models write, as elements: headings, lists, quotes, code, tables, bold, italic and links. Nothing is
// ever parsed as HTML; what is not recognised stays as it was written.

import { h } from "./dom.js";

const INLINE =
  /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?\S?)\*\*|(?<![\w*])[*_](?=\S)([^*_]*?[^\s*_])[*_](?![\w*])|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

/** A line's text with its marks made elements. */
function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [all, , code, strong, emphasis, label, address] = found;
    parts.push(text.slice(at, found.index));
    if (code !== undefined) parts.push(h("code", {}, code.trim()));
    else if (strong !== undefined) parts.push(h("strong", {}, inline(strong)));
    else if (emphasis !== undefined) parts.push(h("em", {}, emphasis));
    else parts.push(h("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank" }, label));
    at = found.index + all.length;
  }
  return [...parts, text.slice(at)];
}

const cells = (line) => line.replace(/^\s*\||\|\s*$/g, "").split("|");
const ITEM = /^(\s*)(?:[-*+]|(\d+)[.)])\s+(.*)/;

/** One list, from a line that begins an item; nested where a line is indented further. */
function list(lines) {
  const [, indent, number] = lines[0].match(ITEM);
  const items = [];
  while (lines.length) {
    const found = lines[0].match(ITEM);
    if (!found) {
      if (!lines[0].trim() || !/^\s/.test(lines[0])) break;
      items.at(-1).append(" ", ...inline(lines.shift().trim()));
    } else if (found[1].length > indent.length) items.at(-1).append(list(lines));
    else if (found[1].length < indent.length) break;
    else {
      if ((found[2] === undefined) !== (number === undefined)) break;
      items.push(h("li", {}, inline(found[3])));
      lines.shift();
    }
  }
  return number === undefined ? h("ul", {}, items) : h("ol", { start: number }, items);
}

function fenced(lines) {
  const mark = lines.shift().match(/^\s*(`{3,}|~{3,})/)[1];
  const code = [];
  while (lines.length && !lines[0].trim().startsWith(mark)) code.push(lines.shift());
  lines.shift();
  return h("pre", { tabindex: "0" }, h("code", {}, code.join("\n")));
}

function table(lines) {
  const head = cells(lines.shift());
  lines.shift();
  const rows = [];
  while (lines.length && lines[0].includes("|")) rows.push(cells(lines.shift()));
  const row = (kind) => (values) => h("tr", {}, values.map((value) => h(kind, {}, inline(value.trim()))));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, row("th")(head)), h("tbody", {}, rows.map(row("td")))));
}

const STARTS = /^\s*(?:`{3,}|~{3,}|#{1,6}\s|>|(?:[-*+]|\d+[.)])\s+)/;

/** The elements of a text in Markdown. */
export function markdown(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks = [];
  while (lines.length) {
    const line = lines[0];
    const heading = line.match(/^\s{0,3}(#{1,6})\s+(.*?)\s*#*$/);
    if (!line.trim()) lines.shift();
    else if (/^\s*(`{3,}|~{3,})/.test(line)) blocks.push(fenced(lines));
    else if (heading) {
      blocks.push(h(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2])));
      lines.shift();
    } else if (/^\s*(?:---+|\*\*\*+|___+)\s*$/.test(line)) {
      blocks.push(h("hr"));
      lines.shift();
    } else if (/^\s*>/.test(line)) {
      const quoted = [];
      while (lines.length && /^\s*>/.test(lines[0])) quoted.push(lines.shift().replace(/^\s*>\s?/, ""));
      blocks.push(h("blockquote", {}, markdown(quoted.join("\n"))));
    } else if (ITEM.test(line)) blocks.push(list(lines));
    else if (line.includes("|") && /^[\s|:-]+$/.test(lines[1] ?? "") && lines[1].includes("-") && lines[1].includes("|"))
      blocks.push(table(lines));
    else {
      const kept = [lines.shift()];
      while (lines.length && lines[0].trim() && !STARTS.test(lines[0])) kept.push(lines.shift());
      blocks.push(h("p", {}, kept.flatMap((one, i) => [i ? h("br") : "", ...inline(one)])));
    }
  }
  return blocks;
}
