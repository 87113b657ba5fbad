// The gateway's API: the key, errors as sentences, streams.

import { t } from "./i18n.js";

const STORED = "conch-key";

export const key = {
  get: () => sessionStorage.getItem(STORED) || "",
  set: (value) => (value ? sessionStorage.setItem(STORED, value) : sessionStorage.removeItem(STORED)),
};

/** An answer that is no success; `status` 0: nobody answered. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const refusals = new Set();

/** Call `listener` whenever a request is refused for its key. */
export function onRefused(listener) {
  refusals.add(listener);
}

async function sentence(answer) {
  try {
    const { error } = await answer.json();
    return error.message || String(error);
  } catch {
    return t("error.status", { status: answer.status });
  }
}

/** fetch with the key in its header; whatever is not a success is thrown as an ApiError. */
export async function request(path, options = {}) {
  const headers = { ...options.headers, ...(key.get() && { Authorization: `Bearer ${key.get()}` }) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, t("error.unreachable"));
  }
  return checked(answer);
}

async function checked(answer) {
  if (answer.ok) return answer;
  const error = new ApiError(answer.status, answer.status === 401 ? t("key.wrong") : await sentence(answer));
  if (answer.status === 401) refusals.forEach((listener) => listener(error.message));
  throw error;
}

/** The JSON of the answer to a form; `moved` gets the part that has been uploaded, 0 to 1 (fetch tells none). */
export async function sent(path, form, { signal, moved }) {
  const upload = new XMLHttpRequest();
  upload.open("POST", path);
  if (key.get()) upload.setRequestHeader("Authorization", `Bearer ${key.get()}`);
  upload.upload.onprogress = ({ loaded, total }) => moved(Math.min(loaded / total, 0.999));
  upload.upload.onload = () => moved(1);
  const answer = await new Promise((resolve, reject) => {
    signal.onabort = () => upload.abort();
    upload.onabort = () => reject(new DOMException("", "AbortError"));
    upload.onerror = () => reject(new ApiError(0, t("error.unreachable")));
    upload.onload = () => resolve(new Response(upload.responseText, { status: upload.status }));
    upload.send(form);
  });
  return (await checked(answer)).json();
}

/** The JSON of an answer; `body` is sent as JSON, by POST. */
export async function call(path, body, options = {}) {
  const sent = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  return (await request(path, { ...(body !== undefined && sent), ...options })).json();
}

/** The objects of a stream of server-sent events, until [DONE]. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        if (line === "data: [DONE]") continue; // the end of the body follows
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new ApiError(500, event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A live session; the key goes among the subprotocols, since a page may send no header with a WebSocket. */
export function realtime(model) {
  const url = new URL("/v1/realtime", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = new URLSearchParams({ intent: "transcription", model });
  const protocols = ["realtime", ...(key.get() ? [`openai-insecure-api-key.${key.get()}`] : [])];
  try {
    return new WebSocket(url, protocols);
  } catch {
    throw new ApiError(0, t("live.key"));
  }
}
