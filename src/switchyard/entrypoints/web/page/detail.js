// The dialog with one order or one strategy.
import { get } from "./api.js";
import { at, badge, element, fill, number, pairs, table, time } from "./dom.js";
import { statusBadge } from "./orders.js";
import { Poll } from "./poll.js";
import { HEALTH_LEVELS } from "./strategies.js";
import { flat } from "./text.js";

const EVENTS_MAX = 100;
const CHART = "equity.svg";
const IN_DOUBT =
  "The venue may or may not have this order. A lookup, a report or an operator settles it; it is not sent again before that is safe.";

export class Detail {
  #subject = null; #shown = ""; #poll;

  constructor() {
    this.#poll = new Poll({
      state: "detail-state",
      seconds: 15,
      read: () => this.#subject.read(),
      places: ["detail-body"],
      show: (data) => this.#show(data),
    });
    at("detail-close").addEventListener("click", () => at("detail").close());
    at("detail").addEventListener("close", () => {
      // The button that opened it may have been drawn anew.
      const opener = document.querySelector(`[data-key="${CSS.escape(this.#subject?.name ?? "")}"]`);
      this.#subject = null;
      this.#poll.clear();
      opener?.focus();
    });
  }

  /** Open an order. */
  order(orderId) {
    this.#open({ name: orderId, title: `Order ${orderId}`, read: () => readOrder(orderId), show: showOrder });
  }

  /** Open a strategy of an account. */
  strategy(id, account) {
    this.#open({ name: id, title: `Strategy ${id}`, read: () => readStrategy(id, account), show: showStrategy });
  }

  /** Read again what is open, if it is this order. */
  changed(orderId) {
    if (this.#subject?.name === orderId) this.#poll.now();
  }

  /** Close it, because the token has changed. */
  close() {
    at("detail").close();
  }

  #open(subject) {
    this.#subject = subject;
    this.#shown = "";
    this.#poll.clear();
    at("detail-title").textContent = subject.title;
    at("detail").showModal();
    this.#poll.now();
  }

  #show(data) {
    // Drawn only when it differs: what the user has unfolded stays so.
    const text = JSON.stringify(data);
    if (text === this.#shown) return;
    this.#shown = text;
    fill(at("detail-body"), ...this.#subject.show(data));
  }
}

async function readOrder(orderId) {
  const [order, explanation, history] = await Promise.all([
    get("/orders/{orderId}", "account", { orderId }),
    get("/orders/{orderId}/explain", "account", { orderId }),
    get("/orders/{orderId}/events", "account", { orderId }, { limit: EVENTS_MAX }),
  ]);
  return { order, explanation, history };
}

function showOrder({ order, explanation, history }) {
  const facts = [
    ["Status", statusBadge(order.status)],
    ["Order", `${order.side} ${order.symbol}, ${order.type} ${order.timeInForce}${order.reduceOnly ? ", reduce only" : ""}${order.postOnly ? ", post only" : ""}`],
    ["Quantity", number(order.qty)],
    ["Shown to the market", shownNumber(order.displayQty)],
    ["Filled", number(order.filledQty)],
    ["Remaining", number(order.remainingQty)],
    ["Price", shownNumber(order.price)],
    ["Stop price", shownNumber(order.stopPrice)],
    ["Average price", shownNumber(order.avgPrice)],
    ["Amend under way to", shownNumber(order.pendingQty)],
    ["Venue", order.venue],
    ["Venue's id", order.venueOrderId],
    ["Account", order.accountId],
    ["Client id", order.clientOrderId],
    ["Strategy", order.strategy],
    ["Tags", order.tags.join(", ")],
    ["Accepted (UTC)", time(order.acceptedAt)],
    ["Changed (UTC)", time(order.updatedAt)],
    ["Not sent after (UTC)", order.expiresAt === undefined ? null : time(order.expiresAt)],
    ["Reason", order.reason],
  ].filter(([, value]) => value !== null && value !== "");
  const steps = explanation.steps.map((step) =>
    element(
      "li",
      { "data-level": step.kind === "doubt" ? "bad" : null },
      time(step.at),
      element("span", { class: "kind" }, step.kind),
      element("span", {}, step.text),
    ),
  );
  const doubt =
    order.status === "UNKNOWN"
      ? [element("p", { class: "notice", "data-level": "bad" }, IN_DOUBT)]
      : [];
  const events = history.events.map((event) =>
    element(
      "details",
      {},
      element("summary", {}, `${event.seq} ${event.type} `, time(event.at)),
      pairs(flat(event.data)),
    ),
  );
  return [
    ...doubt,
    pairs(facts),
    element("h3", {}, "What happened (UTC)"),
    element("ol", { class: "steps" }, ...steps),
    explanation.hasMore ? element("p", {}, "The order has more events than are told here.") : "",
    element("h3", {}, "Events in the journal"),
    history.nextCursor === null ? "" : element("p", {}, `Only the newest ${EVENTS_MAX}.`),
    ...events,
  ];
}

/** A number; null where an order has none, so that its line is left out. */
function shownNumber(text) {
  return text === null || text === undefined ? null : number(text);
}

async function readStrategy(id, account) {
  const query = account === null ? {} : { account };
  const strategy = await get("/gui/strategies/{strategy_id}", "strategies", { strategy_id: id }, query);
  if (strategy.last_request_id === null) return { strategy, chart: { problem: "It was not checked yet." } };
  const artifact = { request_id: strategy.last_request_id, strategy_id: id, name: CHART };
  try {
    const { url } = await get("/pdca/downloads/{request_id}/{strategy_id}/{name}", "strategies", artifact, query);
    // The same picture for the whole dialog: a new signature would load it again.
    return { strategy, chart: { path: url.split("?")[0] }, url: () => url };
  } catch (error) {
    return { strategy, chart: { problem: error.status === 404 ? "The last check made no chart." : error.message } };
  }
}

function showStrategy({ strategy, chart, url }) {
  const metrics = Object.entries(strategy.metrics).map(([name, metric]) => ({ name, ...metric, ...strategy.thresholds[name] }));
  const columns = [
    { title: "Metric", text: (row) => row.name },
    { title: "Value", kind: "number", text: (row) => row.value },
    { title: "Unit", text: (row) => row.unit },
    { title: "Degraded at", kind: "number", text: (row) => row.degraded },
    { title: "Unhealthy at", kind: "number", text: (row) => row.unhealthy },
    { title: "Why undefined", text: (row) => row.reason },
  ];
  const facts = [
    ["Account", strategy.account ?? "–"],
    ["Health", badge(strategy.health, HEALTH_LEVELS[strategy.health])],
    ["Because", strategy.health_reasons.join("; ") || "–"],
    ["Checked (UTC)", time(strategy.last_checked_at)],
    ["Owner", strategy.owner ?? "–"],
    ["Tags", strategy.tags.join(", ") || "–"],
    ["Capital", strategy.capital === null ? "–" : element("span", {}, number(strategy.capital.amount), ` ${strategy.capital.currency}`)],
  ];
  return [
    pairs(facts),
    element("h3", {}, "Metrics of the last check"),
    table(`Metrics of ${strategy.id}`, columns, metrics, { quiet: true }),
    element("h3", {}, "Equity and drawdown"),
    chart.problem === undefined
      ? element("img", { src: url(), alt: `Equity and drawdown of ${strategy.id}`, class: "chart" })
      : element("p", { class: "empty" }, chart.problem),
  ];
}
