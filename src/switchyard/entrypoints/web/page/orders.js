// The account's newest orders: read from the API, then kept up to date by the stream.
import { get } from "./api.js";
import { at, badge, element, fill, table, time } from "./dom.js";
import { Poll } from "./poll.js";
import { isLater, shortId } from "./text.js";

const OPEN = ["ACCEPTED", "SENDING", "UNKNOWN", "WORKING", "PARTIALLY_FILLED", "CANCEL_REQUESTED"];
const FILTERS = { all: null, open: OPEN, doubt: ["UNKNOWN"], ended: ["FILLED", "CANCELED", "REJECTED", "EXPIRED"] };
const LEVELS = { UNKNOWN: "bad", FILLED: "good", CANCEL_REQUESTED: "warn", REJECTED: "warn", CANCELED: "unknown", EXPIRED: "unknown" };
const PAGE = 100;
const ROWS_MAX = 500; // the API's largest page
// Under load hundreds of updates come within one frame; people cannot read faster than this.
const DRAW_MS = 200;

/** A status as people see it. */
export function statusBadge(status) {
  return badge(status === "UNKNOWN" ? "UNKNOWN (in doubt)" : status, LEVELS[status] ?? "busy");
}

export class Orders {
  #orders = new Map(); #during = null; #filter = "all"; #limit = PAGE; #hasMore = false; #oldest = ""; #drawing = null; #select; #poll;

  /** `select(orderId)` is called when the user opens an order. */
  constructor({ select }) {
    this.#select = select;
    this.#poll = new Poll({
      state: "orders-state",
      seconds: 30,
      read: () => this.#read(),
      places: ["orders-table"],
      show: (page) => this.#replace(page),
    });
    at("orders-filter").addEventListener("change", (event) => this.filter(event.target.value));
    at("orders-older").addEventListener("click", () => {
      this.#limit = Math.min(ROWS_MAX, this.#limit + PAGE);
      this.#poll.now();
    });
  }

  /** Show the orders of the token of now. */
  restart() {
    this.#orders.clear();
    this.#limit = PAGE;
    this.#hasMore = false;
    this.#oldest = "";
    at("orders-older").hidden = true;
    this.#poll.clear();
    this.#poll.now();
  }

  /** Read all orders again, because updates were missed. */
  reload() {
    this.#poll.now();
  }

  /** Show only orders of a filter. */
  filter(name) {
    at("orders-filter").value = name;
    this.#filter = name;
    this.restart();
  }

  /** Take an order's new state from the stream. */
  update(order) {
    this.#during?.set(order.orderId, order);
    if (this.#merge(order)) this.#draw();
  }

  async #read() {
    const statuses = FILTERS[this.#filter];
    this.#during = new Map();
    try {
      return await get("/orders", "account", {}, { limit: this.#limit, ...(statuses === null ? {} : { status: statuses.join(",") }) });
    } catch (error) {
      this.#during = null;
      throw error;
    }
  }

  #replace(page) {
    // The answer may be older than updates that came while it was read.
    const updates = this.#during?.values() ?? [];
    this.#during = null;
    this.#orders = new Map(page.orders.map((order) => [order.orderId, order]));
    this.#hasMore = page.nextCursor !== null;
    this.#oldest = this.#hasMore ? page.orders.at(-1).orderId : "";
    for (const order of updates) this.#merge(order);
    this.#show();
  }

  #merge(order) {
    const known = this.#orders.get(order.orderId);
    if (known !== undefined && !isLater(order.version, known.version)) return false;
    const statuses = FILTERS[this.#filter];
    if (statuses !== null && !statuses.includes(order.status)) return this.#orders.delete(order.orderId);
    // An update of an order that is older than those of the page belongs to a later page.
    if (known === undefined && order.orderId < this.#oldest) return false;
    this.#orders.set(order.orderId, order);
    return true;
  }

  #draw() {
    this.#drawing ??= setTimeout(() => {
      this.#show();
      this.#poll.touch();
    }, DRAW_MS);
  }

  #show() {
    clearTimeout(this.#drawing);
    this.#drawing = null;
    const newest = [...this.#orders.values()].sort((one, other) => (one.orderId < other.orderId ? 1 : -1));
    for (const order of newest.splice(this.#limit)) {
      this.#orders.delete(order.orderId);
      this.#hasMore = true;
    }
    if (this.#hasMore) this.#oldest = newest.at(-1).orderId;
    at("orders-older").hidden = !this.#hasMore || this.#limit >= ROWS_MAX;
    const shown = table("Orders, newest first", COLUMNS, newest, {
      key: (order) => order.orderId,
      select: (order) => this.#select(order.orderId),
      level: (order) => (order.status === "UNKNOWN" ? "bad" : null),
      quiet: true,
      empty: this.#filter === "all" ? "This account has no orders yet." : "No such orders.",
    });
    const isCut = this.#hasMore && this.#limit >= ROWS_MAX;
    fill(at("orders-table"), shown, ...(isCut ? [element("p", {}, `Only the newest ${ROWS_MAX}; switchyard orders shows all.`)] : []));
  }
}

const COLUMNS = [
  { title: "Order", opens: true, text: (row) => shortId(row.orderId) },
  { title: "Accepted (UTC)", wide: true, show: (row) => time(row.acceptedAt) },
  { title: "Status", show: (row) => statusBadge(row.status) },
  { title: "Side", text: (row) => row.side },
  { title: "Symbol", text: (row) => row.symbol },
  { title: "Quantity", kind: "number", text: (row) => row.qty },
  { title: "Filled", kind: "number", text: (row) => row.filledQty },
  { title: "Price", kind: "number", text: (row) => row.price },
  { title: "Average", kind: "number", text: (row) => row.avgPrice },
  { title: "Type", wide: true, text: (row) => `${row.type} ${row.timeInForce}` },
  { title: "Venue", wide: true, text: (row) => row.venue },
  { title: "Strategy", wide: true, text: (row) => row.strategy },
  { title: "Reason", kind: "long", text: (row) => row.reason },
  { title: "Client id", kind: "long", wide: true, text: (row) => row.clientOrderId },
];
