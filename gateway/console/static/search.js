// The panel for search: vector stores, their files, and what is found in them by a text or a picture.

import { call, request } from "./api.js";
import { confirmation, field, folded, h, select } from "./dom.js";
import { addition, creation, deletion, examples, finding } from "./examples.js";
import { t } from "./i18n.js";
import { ACCEPTED, dropzone, kindOf, part, pasted, Shot, thumbnail } from "./images.js";

export const id = "search";

const STORES = "/v1/vector_stores";
const PAGE = 20; // files that are listed at once
const MOST_STORES = 1000;
const LOOK = 1000; // milliseconds between two looks at what is not indexed yet
const BADGES = {
  completed: "serving",
  in_progress: "draining",
  failed: "unreachable",
  cancelled: "draining",
};

/** Models that embed, where files and vector stores are kept. */
export function models(state) {
  return state.retrieval?.embedders || [];
}

/** Attributes as somebody types them, one a line: name = value. */
export function attributes(text) {
  const rows = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    rows.map((line) => {
      const [name, value] = line.split(/=(.*)/s, 2).map((one) => one.trim());
      if (!name || value === undefined) throw new Error(t("search.attribute", { line }));
      return [name, typed(value)];
    }),
  );
}

function typed(value) {
  if (value === "true" || value === "false") return value === "true";
  return /^-?\d{1,15}(\.\d+)?$/.test(value) ? Number(value) : value;
}

const tags = (pairs) =>
  Object.entries(pairs).map(([name, value]) => h("span", { class: "tag" }, `${name} = ${value}`));

export function mount(state, say) {
  const { embedders, answerers, max_pictures_bytes: mostPicture } = state.retrieval;
  const sees = embedders.some((one) => one.pictures);
  const store = select([], "", () => changed());
  const name = h("input", { type: "text", autocomplete: "off", maxlength: 256 });
  const create = h("button", { type: "button", onclick: () => trying(made) }, t("search.create"));
  const remove = h("button", { type: "button", disabled: true, onclick: asked }, t("search.delete"));
  const about = h("p", { class: "facts", role: "status" });
  const drop = dropzone(
    {
      id: "store-file",
      title: t("search.drop"),
      hint: t(sees ? "search.kinds" : "search.texts"),
      multiple: true,
    },
    (files) => trying(() => uploaded(files)),
  );
  const said = h("textarea", { rows: 2, spellcheck: false, placeholder: "year = 2026" });
  const files = h("ul", { class: "files", "aria-label": t("search.files") });
  const more = h("button", { type: "button", class: "small", hidden: true }, t("search.more"));
  const filesCard = h(
    "section",
    { class: "card", "aria-label": t("search.files"), hidden: true },
    h("h3", {}, t("search.files")),
    drop,
    h("div", { class: "spaced" }, field(t("search.attributes"), said, t("search.attributehint"))),
    files,
    more,
  );
  const query = h("input", { type: "search", autocomplete: "off", maxlength: 4096 });
  const by = select(
    [
      ["text", t("search.text")],
      ["picture", t("search.picture")],
    ],
    "text",
    () => asking(),
  );
  const queryDrop = dropzone(
    { id: "query-file", title: t("search.querydrop"), hint: t("pictures.kinds"), accept: ACCEPTED },
    (chosen) => trying(() => looked(chosen[0])),
  );
  const view = h("div", { class: "shots" });
  const question = h("input", { type: "text", autocomplete: "off", maxlength: 4096 });
  const answerer = select(
    answerers.map((one) => [one, one]),
    answerers[0],
  );
  const most = h("input", { type: "number", inputmode: "numeric", min: 1, max: 50, step: 1, value: 10 });
  const go = h("button", { type: "button", class: "primary", onclick: find }, t("search.find"));
  const textField = field(t("search.query"), query);
  const answered = [
    field(t("search.question"), question, t("search.questionhint")),
    answerers.length > 1 && field(t("search.answerer"), answerer),
  ];
  const pictureFields = h(
    "div",
    { hidden: true },
    queryDrop,
    view,
    answerers.length > 0 && h("div", { class: "fields" }, answered),
  );
  const results = h("ol", { class: "results" });
  const answer = h("p", { class: "answer", hidden: true });
  const facts = h("p", { class: "facts", role: "status" });
  const searchCard = h(
    "section",
    { class: "card", "aria-label": t("search.find"), hidden: true },
    h("h3", {}, t("search.find")),
    sees && h("div", { class: "fields" }, field(t("search.by"), by)),
    h("div", { class: "spaced" }, textField, pictureFields),
    h("div", { class: "row" }, go),
    folded(h("div", { class: "fields" }, field(t("search.most"), most))),
  );
  const found = h(
    "section",
    { class: "card", "aria-label": t("search.results"), hidden: true },
    answer,
    results,
    facts,
  );
  const shown = examples();
  const dialog = confirmation("delete");
  const named = new Map(); // filenames by a file's id, as promises
  const pictures = new Map(); // bytes of pictures by a file's id, as promises
  let stores = [],
    shot = null,
    listed = PAGE,
    timer = null;

  for (const input of [query, question])
    input.addEventListener("keydown", (event) => event.key === "Enter" && find());
  name.addEventListener("keydown", (event) => event.key === "Enter" && trying(made));
  more.addEventListener("click", () => {
    listed += PAGE;
    trying(look);
  });

  /** Run an action, and show its error. */
  async function trying(work) {
    try {
      await work();
    } catch (error) {
      say(error.message, true);
    }
  }

  async function all(path, limit) {
    const rows = [];
    for (let after = ""; ;) {
      const size = Math.min(100, limit - rows.length);
      const page = await call(`${path}?${new URLSearchParams({ limit: size, ...(after && { after }) })}`);
      rows.push(...page.data);
      if (!page.has_more || rows.length >= limit) return rows;
      after = page.last_id;
    }
  }

  /** The stores as they are; `wanted` is chosen, or what was chosen before, or the newest. */
  async function refresh(wanted = store.value) {
    stores = await all(STORES, MOST_STORES);
    const kept = stores.some((one) => one.id === wanted) ? wanted : stores[0]?.id;
    store.replaceChildren(
      ...stores.map((one) => h("option", { value: one.id, selected: one.id === kept }, one.name || one.id)),
    );
    remove.disabled = store.disabled = !stores.length;
    filesCard.hidden = searchCard.hidden = !stores.length;
    await changed();
  }

  async function changed() {
    listed = PAGE;
    found.hidden = true;
    files.replaceChildren();
    if (stores.length) await trying(look);
    else about.replaceChildren(t("search.nostore"));
  }

  /** The files of the store, and again until all of them are indexed. */
  async function look() {
    clearTimeout(timer);
    const wanted = store.value;
    const [one, rows] = await Promise.all([
      call(`${STORES}/${wanted}`),
      all(`${STORES}/${wanted}/files`, listed),
    ]);
    const names = await Promise.all(rows.map((row) => filename(row.id)));
    if (wanted !== store.value) return;
    const { total, completed, in_progress: going, failed } = one.file_counts;
    about.replaceChildren(
      t("search.counts", { total, completed, going, failed, by: one.embedding_models.join(", ") }),
    );
    files.replaceChildren(...rows.map((row, i) => fileRow(row, names[i])));
    more.hidden = total <= rows.length;
    if (going) timer = setTimeout(() => trying(look), LOOK);
  }

  function filename(file) {
    if (!named.has(file))
      named.set(
        file,
        call(`/v1/files/${file}`).then(
          (one) => one.filename,
          () => file, // deleted meanwhile
        ),
      );
    return named.get(file);
  }

  function fileRow(row, called) {
    const detach = async () => {
      await request(`${STORES}/${store.value}/files/${row.id}`, { method: "DELETE" });
      await look();
    };
    const label = t("search.removefile", { name: called });
    return h(
      "li",
      {},
      h("span", { class: "name" }, called),
      h("span", { class: `badge ${BADGES[row.status]}` }, t(`search.${row.status}`)),
      h("span", { class: "tags" }, tags(row.attributes)),
      h(
        "button",
        { type: "button", class: "small", "aria-label": label, onclick: () => trying(detach) },
        "×",
      ),
      row.last_error && h("p", { class: "trouble" }, row.last_error.message),
    );
  }

  async function made() {
    const called = name.value.trim();
    if (!called) {
      name.focus();
      throw new Error(t("search.noname"));
    }
    const one = await call(STORES, { name: called });
    shown.show(creation(called));
    name.value = "";
    say(t("search.created", { name: called }));
    await refresh(one.id);
  }

  function asked() {
    const one = stores.find((row) => row.id === store.value);
    const called = one.name || one.id;
    dialog.ask(t("search.deletetitle", { name: called }), t("search.deletes"), t("search.delete"), () =>
      trying(async () => {
        await request(`${STORES}/${one.id}`, { method: "DELETE" });
        shown.show(deletion(one.id));
        say(t("search.deleted", { name: called }));
        await refresh("");
      }),
    );
  }

  function within(file) {
    const bound = kindOf(file.name) ? Math.min(mostPicture, state.max_upload_bytes) : state.max_upload_bytes;
    if (file.size > bound)
      throw new Error(t("search.large", { name: file.name, most: Math.floor(bound / 1e6) }));
  }

  async function uploaded(chosen) {
    const [given, into] = [attributes(said.value), store.value];
    chosen.forEach(within);
    for (const file of chosen) {
      say(t("search.uploading", { name: file.name }));
      const body = new FormData();
      body.append("purpose", "assistants");
      body.append("file", file, file.name);
      const kept = await (await request("/v1/files", { method: "POST", body })).json();
      named.set(kept.id, file.name);
      await call(`${STORES}/${into}/files`, { file_id: kept.id, attributes: given });
      shown.show(addition(into, file.name, kept.id, given));
      await look();
    }
    say("");
  }

  async function looked(file) {
    if (!kindOf(file.name) && !file.type.startsWith("image/"))
      throw new Error(t("pictures.none", { name: file.name }));
    shot = await Shot.of(file);
    by.value = "picture";
    asking();
    view.replaceChildren(thumbnail(shot.file, shot.name));
    say("");
  }

  function asking() {
    textField.hidden = by.value === "picture";
    pictureFields.hidden = !textField.hidden;
  }

  function body() {
    const asks = by.value === "picture" && question.value.trim();
    return {
      query: by.value === "picture" ? [part(shot)] : query.value,
      ...(asks && { question: asks, model: answerer.value }),
      max_num_results: Number(most.value) || 10,
    };
  }

  async function find() {
    if (go.disabled) return;
    const lacks = by.value === "picture" ? !shot : !query.value.trim();
    if (lacks) {
      say(t(by.value === "picture" ? "search.nopicture" : "search.noquery"), true);
      (by.value === "picture" ? queryDrop.querySelector("input") : query).focus();
      return;
    }
    const [sent, where, started] = [body(), store.value, performance.now()];
    go.disabled = true;
    say(t("search.searching"));
    shown.show(finding(where, sent));
    await trying(async () => {
      const page = await call(`${STORES}/${where}/search`, sent);
      tell(page, performance.now() - started);
      say("");
    });
    go.disabled = false;
  }

  function tell({ data, answer: one }, ms) {
    answer.hidden = !one;
    if (one) answer.replaceChildren(h("b", {}, `${one.model}: `), one.text);
    results.replaceChildren(...data.map(result));
    const count = t(data.length ? "search.found" : "search.nothing", {
      count: data.length,
      ms: Math.round(ms),
    });
    facts.replaceChildren(count, data.length ? ` ${t("search.scores")}` : "");
    found.hidden = false;
    found.scrollIntoView({ block: "nearest" });
  }

  function result(row) {
    const kind = kindOf(row.filename);
    const picture = h("div", { class: "shot" });
    if (kind) trying(async () => picture.append(thumbnail(await bytes(row, kind), row.filename)));
    const cosines = Object.entries(row.cosines || {}).map(
      ([model, cosine]) => `${model} ${cosine.toFixed(3)}`,
    );
    return h(
      "li",
      { class: kind ? "result seen" : "result" },
      kind && picture,
      h(
        "div",
        {},
        h(
          "div",
          { class: "head" },
          h("b", {}, row.filename),
          h("span", { class: "score" }, row.score.toFixed(3)),
        ),
        row.content.map((one) => h("p", { class: "text" }, one.text)),
        h("div", {}, tags(row.attributes || {})),
        h("small", {}, t("search.cosines", { cosines: cosines.join(", ") })),
      ),
    );
  }

  function bytes({ file_id: file }, kind) {
    if (!pictures.has(file))
      pictures.set(
        file,
        request(`/v1/files/${file}/content`)
          .then(async (got) => new Blob([await got.blob()], { type: kind }))
          .catch((error) => {
            pictures.delete(file); // another time it may come
            throw error;
          }),
      );
    return pictures.get(file);
  }

  const element = h(
    "div",
    { class: "panel" },
    h(
      "section",
      { class: "card", "aria-label": t("search.stores") },
      h("div", { class: "fields two" }, field(t("search.store"), store), field(t("search.new"), name)),
      h("div", { class: "row" }, create, remove),
      about,
    ),
    searchCard,
    found,
    filesCard,
    shown.element,
    dialog.element,
  );
  pasted(element, (chosen) => sees && stores.length && trying(() => looked(chosen[0])));
  trying(() => refresh(""));
  return element;
}
