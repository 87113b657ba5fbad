// Segments as subtitles, byte for byte what response_format=srt and vtt give (gateway/audio/responses.py).

const SHORTEST = 0.02;

/** Hours, minutes, seconds and milliseconds, as subtitles write them. */
export function clock(seconds, comma) {
  const ms = Math.round(seconds * 1000);
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  const thousandths = String(ms % 1000).padStart(3, "0");
  return `${two(ms / 3600000)}:${two((ms / 60000) % 60)}:${two((ms / 1000) % 60)}${comma}${thousandths}`;
}

function cues(segments, comma) {
  return segments.map(({ start, end, text, speaker = "" }) => [
    `${clock(start, comma)} --> ${clock(Math.max(end, start + SHORTEST), comma)}`,
    text.trim().replaceAll("-->", "→"),
    speaker.replaceAll("-->", "→").trim().replaceAll(/\s+/g, " "),
  ]);
}

/** SubRip. */
export function srt(segments) {
  return cues(segments, ",")
    .map(([times, text, speaker], i) => `${i + 1}\n${times}\n${speaker && `${speaker}: `}${text}\n\n`)
    .join("");
}

/** WebVTT. */
export function vtt(segments) {
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const voice = (name) => name && `<v ${escaped(name).replaceAll(">", "&gt;")}>`;
  return (
    "WEBVTT\n\n" +
    cues(segments, ".")
      .map(([times, text, speaker]) => `${times}\n${voice(speaker)}${escaped(text)}\n\n`)
      .join("")
  );
}

/** The text, a line for each turn of a speaker. */
export function turns(segments) {
  const lines = [];
  for (const { text, speaker } of segments) {
    if (lines.at(-1)?.speaker === speaker) lines.at(-1).text += ` ${text.trim()}`;
    else lines.push({ speaker, text: text.trim() });
  }
  return lines.map(({ speaker, text }) => `${speaker}: ${text}\n`).join("");
}
