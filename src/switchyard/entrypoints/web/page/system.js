// The state of the whole system: readiness, kill switch, venues, doubts, breaks.
import { get, getText } from "./api.js";
import { at, badge, element, fill, table, time } from "./dom.js";
import { Poll } from "./poll.js";
import * as session from "./session.js";
import { metricValue } from "./text.js";

const LEVELS = { ready: "good", ok: "good", open: "good", degraded: "warn", held: "warn", suspected: "warn", explained: "good" };
const levelOf = (word) => LEVELS[word] ?? (word === "unknown" ? "unknown" : "bad");
const KILLS_MAX = 100;
const BREAKS_MAX = 100;

/** Returns what starts this part anew. `showDoubts` is called when the user wants to see the orders in doubt. */
export function systemPart({ showDoubts }) {
  const seen = { system: null, books: null };
  const draw = () => fill(at("tiles"), ...tiles(seen, showDoubts));
  const system = new Poll({
    state: "system-state",
    seconds: 5,
    read: readSystem,
    places: ["tiles", "kills", "checks", "venues"],
    show: (data) => {
      seen.system = data;
      draw();
      fill(at("kills"), ...killTable(data.kills));
      fill(at("checks"), checkTable(data.ready));
      fill(at("venues"), ...(data.venues.value === undefined ? [] : [venueTable(data.venues.value)]));
    },
  });
  const books = new Poll({
    state: "breaks-state",
    label: "Breaks and books: ",
    seconds: 20,
    read: readBreaks,
    places: ["breaks"],
    show: (data) => {
      seen.books = data;
      draw();
      fill(at("breaks"), ...breakTable(data));
    },
  });
  return () => {
    seen.system = seen.books = null;
    for (const poll of [system, books]) {
      poll.clear();
      poll.now();
    }
  };
}

async function readSystem() {
  const hasToken = session.tokenOf("account") !== null;
  const ask = (allowed, reading) => (allowed ? settled(reading()) : { reason: session.whyNot("account") });
  const [ready, metrics, venues, kills, doubts] = await Promise.all([
    get("/health/ready", hasToken ? "account" : null, {}, {}, [200, 503]),
    settled(getText("/metrics")),
    ask(hasToken, () => get("/venues", "account")),
    session.hasScope("admin:kill") ? ask(hasToken, () => get("/admin/kills", "account", {}, { limit: KILLS_MAX })) : null,
    ask(hasToken, () => get("/orders", "account", {}, { status: "UNKNOWN", limit: 100 })),
  ]);
  return { ready, metrics, venues, kills, doubts };
}

async function readBreaks() {
  if (session.tokenOf("account") === null) return { problem: session.whyNot("account") };
  try {
    const own = await get("/dashboard/books/reconcile", "account", {}, { limit: BREAKS_MAX });
    const stats = await get("/dashboard/books/stats", "account");
    if (!session.hasScope("admin:reconcile")) return { ...own, of: "this account", hasMore: own.truncated, ...stats };
    const all = await get("/dashboard/books/breaks", "account", {}, { limit: BREAKS_MAX });
    return { ...own, breaks: all.breaks, hasMore: all.nextCursor !== null, of: "all accounts", ...stats };
  } catch (error) {
    if (error.status === 404) return { problem: "This process does not keep the books." };
    throw error;
  }
}

/** The value of a promise, or why there is none: one tile's problem is not the others'. */
async function settled(promise) {
  try {
    return { value: await promise };
  } catch (error) {
    return { reason: error.message };
  }
}

function tiles({ system, books }, showDoubts) {
  const made = [];
  if (system !== null) made.push(readyTile(system), killTile(system), venueTile(system), doubtTile(system, showDoubts));
  if (books !== null) made.push(breakTile(books), booksTile(books));
  return made;
}

function tile(name, value, level, note, onClick = null) {
  const content = [element("span", { class: "name" }, name), badge(value, level), element("span", { class: "note" }, note)];
  if (onClick === null) return element("li", {}, element("div", { class: "tile", "data-level": level }, ...content));
  const button = element("button", { type: "button", class: "tile", "data-level": level, "data-key": `tile ${name}` }, ...content);
  button.addEventListener("click", onClick);
  return element("li", {}, button);
}

function readyTile({ ready }) {
  const words = { ready: "ready", degraded: "degraded", not_ready: "not ready" };
  const wrong = ready.checks.filter((check) => check.status !== "ok");
  const note = wrong.length === 0 ? "all checks are ok" : wrong.map((check) => `${check.check}: ${check.detail ?? check.status}`).join("; ");
  return tile("Gateway", words[ready.status] ?? ready.status, levelOf(ready.status), note);
}

function killTile({ kills, metrics }) {
  const listed = kills?.value?.kills.filter((kill) => kill.active);
  if (listed !== undefined && kills.value.nextCursor === null) return killCount(String(listed.length), "see below");
  // Newer kills come first, and older ones may still be active: then only the figure of this process is complete.
  const count = metrics.value === undefined ? null : metricValue(metrics.value, "kill_switch_active");
  if (count === null) return tile("Kill switch", "not known", "unknown", metrics.reason ?? "the metric is missing");
  return killCount(count, kills === null ? "a token with the scope admin:kill shows which" : "see below");
}

function killCount(count, note) {
  return count === "0" ? tile("Kill switch", "off", "good", "no kill is active") : tile("Kill switch", `${count} active`, "bad", note);
}

function venueTile({ venues }) {
  if (venues.value === undefined) return tile("Venues", "not known", "unknown", venues.reason);
  const all = venues.value.venues;
  const wrong = all.filter((venue) => venue.state !== "open");
  const level = wrong.length === 0 ? "good" : wrong.length === all.length ? "bad" : "warn";
  const note = wrong.length === 0 ? all.map((venue) => venue.venue).join(", ") : wrong.map((venue) => `${venue.venue}: ${venue.state}`).join(", ");
  return tile("Venues", `${all.length - wrong.length} of ${all.length} open`, level, note);
}

function doubtTile({ metrics, doubts }, showDoubts) {
  // Without the database the metric keeps its last value, which may be old.
  const isCurrent = metrics.value !== undefined && metricValue(metrics.value, "journal_up") === "1";
  const all = isCurrent ? metricValue(metrics.value, "outbox_uncertain") : null;
  const own = doubts.value === undefined ? null : doubts.value.orders.length;
  const ownText = own === null ? "" : `orders of this account: ${own}${doubts.value.nextCursor === null ? "" : " or more"}`;
  if (all === null && own === null) return tile("In doubt", "not known", "unknown", doubts.reason ?? metrics.reason);
  const isNone = all === null ? own === 0 : all === "0" && (own ?? 0) === 0;
  const value = all === null ? "not known" : isNone ? "none" : `${all} ${all === "1" ? "send" : "sends"}`;
  const level = isNone ? (all === null ? "unknown" : "good") : "bad";
  const note = [all === null ? `all accounts: ${metrics.reason ?? "the database does not answer"}` : "of all accounts", ownText];
  return tile("In doubt", value, level, note.filter((each) => each !== "").join("; "), own === null ? null : showDoubts);
}

function breakTile(books) {
  if (books.problem !== undefined) return tile("Breaks", "not known", "unknown", books.problem);
  const open = books.breaks.filter((each) => each.state === "open").length;
  const skipped = books.notCompared.length;
  const note = [
    `of ${books.of}`,
    books.comparedAt === null ? "not compared yet" : null,
    skipped === 0 ? null : `not compared: ${skipped}`,
  ].filter((each) => each !== null);
  const level = open > 0 ? "bad" : books.comparedAt === null ? "unknown" : skipped > 0 || books.breaks.length > 0 ? "warn" : "good";
  const value = open > 0 ? `${open}${books.hasMore ? " or more" : ""} open` : books.comparedAt === null ? "not known" : "none open";
  return tile("Breaks", value, level, note.join("; "));
}

function booksTile(books) {
  if (books.problem !== undefined) return tile("Books", "not known", "unknown", books.problem);
  const read = books.lastEventAt === null ? "no event yet" : element("span", {}, "last event ", time(books.lastEventAt), " UTC");
  const compared = books.comparedAt === null ? "never" : time(books.comparedAt);
  return tile("Books", books.lastEventAt === null ? "empty" : "booked", "good", element("span", {}, read, "; compared ", compared));
}

function checkTable(ready) {
  const columns = [
    { title: "Check", text: (row) => row.check },
    { title: "State", show: (row) => badge(row.status, levelOf(row.status)) },
    { title: "Found", text: (row) => row.detail ?? "" },
  ];
  return table("Checks of this process", columns, ready.checks);
}

function venueTable({ venues }) {
  const columns = [
    { title: "Venue", text: (row) => row.venue },
    { title: "Kind", text: (row) => row.kind, wide: true },
    { title: "State", show: (row) => badge(row.state, levelOf(row.state)) },
    { title: "Answers in (ms)", text: (row) => row.latencyMs, kind: "number" },
    { title: "Reject rate", text: (row) => row.rejectRate, kind: "number", wide: true },
    { title: "Reason", text: (row) => row.reason },
  ];
  return table("Venues", columns, venues, { empty: "No venue is configured." });
}

function killTable(kills) {
  const active = kills?.value?.kills.filter((kill) => kill.active) ?? [];
  if (active.length === 0) return [];
  const scope = (kill) =>
    kill.everything ? "everything" : ["account", "strategy", "venue", "symbol"].filter((name) => kill[name] !== null).map((name) => `${name} ${kill[name]}`).join(", ");
  const columns = [
    { title: "Since (UTC)", show: (row) => time(row.setAt) },
    { title: "Stops", text: scope },
    { title: "Mode", text: (row) => row.mode },
    { title: "By", text: (row) => row.by },
    { title: "Reason", text: (row) => row.reason },
    { title: "Kill", text: (row) => row.killId, wide: true },
  ];
  return [table("Active kills", columns, active, { level: () => "bad" })];
}

function breakTable({ breaks = [], hasMore = false }) {
  if (breaks.length === 0) return [];
  const columns = [
    { title: "State", show: (row) => badge(row.state, levelOf(row.state)) },
    { title: "Kind", text: (row) => row.kind },
    { title: "Class", text: (row) => row.class },
    { title: "Account", text: (row) => row.accountId },
    { title: "Amount", text: (row) => row.amount, kind: "number" },
    { title: "Unit", text: (row) => row.unit },
    { title: "In the books", text: (row) => row.here },
    { title: "Elsewhere", text: (row) => row.there },
    { title: "Since (UTC)", show: (row) => time(row.firstSeenAt) },
    { title: "Break", text: (row) => row.breakId, wide: true },
  ];
  const more = hasMore ? [element("p", {}, `Only the first ${BREAKS_MAX}.`)] : [];
  return [table("Breaks", columns, breaks), ...more];
}
