// Positions, balances and P&L of the token's account, from the books where this process keeps them.
import { get } from "./api.js";
import { at, element, fill, table, time } from "./dom.js";
import { Poll } from "./poll.js";

const ROWS_MAX = 100;
// Fills come in bursts, and the books follow them within a fraction of a second.
const SETTLE_MS = 1_500;
const NO_BOOKS = "This process does not keep the books (SWITCHYARD_DASHBOARD_BOOKS_URL names a back office that does).";

export class Account {
  #money; #results; #by = "day"; #timer = null;

  constructor() {
    this.#money = new Poll({ state: "account-state", seconds: 15, read: readMoney, places: ["positions", "balances"], show: showMoney });
    this.#results = new Poll({
      state: "pnl-state",
      seconds: 30,
      read: () => readResults(this.#by),
      places: ["pnl"],
      show: (data) => showResults(this.#by, data),
    });
    at("pnl-by").addEventListener("change", (event) => {
      this.#by = event.target.value;
      this.#results.clear();
      this.#results.now();
    });
  }

  /** Show the account of the token of now. */
  restart() {
    for (const poll of [this.#money, this.#results]) {
      poll.clear();
      poll.now();
    }
  }

  /** Read again soon: an order was filled. */
  changed() {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#money.now();
      this.#results.now();
    }, SETTLE_MS);
  }
}

async function readMoney() {
  try {
    const [held, money] = await Promise.all([
      get("/dashboard/books/positions", "account", {}, { limit: ROWS_MAX }),
      get("/dashboard/books/balances", "account", {}, { limit: ROWS_MAX }),
    ]);
    return { held, money };
  } catch (error) {
    if (error.status !== 404) throw error;
    return { held: await get("/positions", "account", {}, { limit: ROWS_MAX }), money: null };
  }
}

function showMoney({ held, money }) {
  const positions = [
    { title: "Symbol", text: (row) => row.symbol },
    { title: "Quantity", kind: "number", text: (row) => row.qty },
    { title: "Average price", kind: "number", text: (row) => row.averagePrice },
    { title: "Cost basis", kind: "number", text: (row) => row.costBasis },
    { title: "Realised P&L", kind: "number", text: (row) => row.realisedPnl },
    { title: "Currency", text: (row) => row.currency },
    { title: "Last fill (UTC)", wide: true, show: (row) => time(row.updatedAt) },
  ];
  fill(at("positions"), table("Open positions", positions, held.positions, { quiet: true, empty: "No open positions." }), ...more(held));
  if (money === null) {
    fill(at("balances"), element("p", { class: "empty" }, NO_BOOKS));
    return;
  }
  const names = ["cash", "trading", "fees", "capital", "adjustments", "conversion", "rounding"];
  const balances = [
    { title: "Currency", text: (row) => row.currency },
    ...names.map((name) => ({ title: name[0].toUpperCase() + name.slice(1), kind: "number", text: (row) => row[name] })),
  ];
  fill(at("balances"), table("Balances; each row sums to zero", balances, money.balances, { empty: "Nothing is booked yet." }), ...more(money));
}

async function readResults(by) {
  try {
    return await get("/dashboard/books/pnl", "account", {}, { by, limit: ROWS_MAX });
  } catch (error) {
    if (error.status !== 404) throw error;
    return null;
  }
}

function showResults(by, results) {
  if (results === null) {
    fill(at("pnl"), element("p", { class: "empty" }, NO_BOOKS));
    return;
  }
  const columns = [
    { title: by[0].toUpperCase() + by.slice(1), text: (row) => row.name ?? "(none)" },
    { title: "Currency", text: (row) => row.currency },
    { title: "Realised", kind: "number", text: (row) => row.realised },
    { title: "Fees", kind: "number", text: (row) => row.fees },
    { title: "Net", kind: "number", text: (row) => row.net },
    { title: "Fills", kind: "number", text: (row) => row.fills },
  ];
  if (by !== "day") columns.push({ title: "Unrealised", kind: "number", text: (row) => row.unrealised ?? row.unrealisedReason });
  fill(at("pnl"), table(`P&L from ${results.from} to ${results.to}`, columns, results.rows, { empty: "No fills in these days." }), ...more(results));
}

function more(page) {
  return page.nextCursor === null ? [] : [element("p", {}, `Only the first ${ROWS_MAX} rows; the API has the others.`)];
}
