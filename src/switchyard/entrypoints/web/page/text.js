// Texts, numbers and times as the page shows them. Pure: no document, no network, no clock.

// A string is taken whole, so that digits in it stay as they are; every other number is outside of strings.
const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Parse JSON with every number as the text that was sent: a JavaScript number would lose digits of money. */
export function parseExact(json) {
  return JSON.parse(json.replace(STRING_OR_NUMBER, (found) => (found.startsWith('"') ? found : `"${found}"`)));
}

/** Split the text of a number into groups of three digits and its fraction with the point; null if it is no number. */
export function numberParts(text) {
  const match = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,2}))?$/.exec(text);
  if (match === null) return null;
  const [, sign, whole, decimals = "", exponent = "0"] = match;
  const point = whole.length + Number(exponent);
  const all = "0".repeat(Math.max(0, 1 - point)) + whole + decimals;
  const end = point + Math.max(0, 1 - point);
  const digits = all.slice(0, end).padEnd(end, "0").replace(/^0+(?=\d)/, "");
  const fraction = all.length > end ? `.${all.slice(end)}` : "";
  const groups = [];
  for (let last = digits.length; last > 0; last -= 3) groups.unshift(digits.slice(Math.max(0, last - 3), last));
  groups[0] = sign + groups[0];
  return { groups, fraction };
}

/** Whether the text of a whole number is larger than another's. */
export function isLater(one, other) {
  return BigInt(one) > BigInt(other);
}

/** A time of the API (RFC 3339, UTC) to the millisecond, without its date if that is today. */
export function shortTime(text, today) {
  if (typeof text !== "string" || !/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/.test(text)) return text ?? "–";
  const [date, rest] = [text.slice(0, 10), text.slice(11).replace(/Z$|[+-]\d\d:\d\d$/, "")];
  const time = rest.slice(0, 8) + (rest.slice(8) === "" ? "" : rest.slice(8, 12).padEnd(4, "0"));
  return date === today ? time : `${date} ${time}`;
}

/** The end of an id, which tells two ids apart; ids begin with the time. */
export function shortId(id) {
  return id.length > 10 ? `…${id.slice(-8)}` : id;
}

/** The claims of a JSON Web Token, unverified: for showing them; the server decides what they are worth. */
export function tokenClaims(token) {
  const parts = token.split(".");
  if (parts.length !== 3) return null;
  try {
    const bytes = Uint8Array.from(atob(parts[1].replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const claims = JSON.parse(new TextDecoder().decode(bytes));
    return claims !== null && typeof claims === "object" ? claims : null;
  } catch {
    return null;
  }
}

/** The value of a metric without labels in Prometheus's text format; null if it is not there. */
export function metricValue(text, name) {
  const line = text.split("\n").find((each) => each.startsWith(`${name} `));
  return line === undefined ? null : line.slice(name.length + 1).trim().replace(/\.0$/, "");
}

/** The members of an object, nested ones with their path, as pairs of texts. */
export function flat(value, path = "") {
  if (value === null || typeof value !== "object") return [[path, value === null ? "–" : String(value)]];
  const members = Object.entries(value);
  if (members.length === 0) return [[path, Array.isArray(value) ? "[]" : "{}"]];
  return members.flatMap(([name, member]) => flat(member, path === "" ? name : `${path}.${name}`));
}

/** A copy of an answer with the members that `paths` names ("orders[].qty"), and no others. */
export function picked(value, paths) {
  const whole = paths.includes("");
  if (whole || value === null || typeof value !== "object") return value;
  const byName = new Map();
  for (const path of paths) {
    const [name, rest] = split(path);
    byName.set(name, [...(byName.get(name) ?? []), rest]);
  }
  if (Array.isArray(value)) return value.map((item) => picked(item, byName.get("[]") ?? []));
  const names = byName.has("*") ? Object.keys(value) : [...byName.keys()].filter((name) => Object.hasOwn(value, name));
  return Object.fromEntries(names.map((name) => [name, picked(value[name], byName.get(name) ?? byName.get("*"))]));
}

function split(path) {
  if (path.startsWith("[]")) return ["[]", path.slice(2).replace(/^\./, "")];
  const end = path.search(/[.[]/);
  if (end < 0) return [path, ""];
  return [path.slice(0, end), path[end] === "." ? path.slice(end + 1) : path.slice(end)];
}

/** Splits server-sent events into messages; bytes arrive in any portions. */
export class Frames {
  #rest = "";

  /** The messages that are complete with this text, each with `id`, `event` and `data`. */
  add(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop();
    return blocks.map(message).filter((each) => each.data !== null);
  }
}

function message(block) {
  const found = { id: null, event: "message", data: null };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment, which keeps the connection open
    const [name, value] = [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
    if (Object.hasOwn(found, name)) found[name] = value;
  }
  return found;
}
