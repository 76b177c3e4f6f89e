// Strategies and their health, for the token of strategies.
import { get } from "./api.js";
import { at, badge, element, fill, table, time } from "./dom.js";
import { Poll } from "./poll.js";

export const HEALTH_LEVELS = { healthy: "good", degraded: "warn", unhealthy: "bad", unknown: "unknown" };
const PAGE_SIZE = 50;
// A key is a request; a person who types waits this long.
const TYPING_MS = 300;

export class Strategies {
  #page = 1; #typing = null; #select; #poll;

  /** `select(id, account)` is called when the user opens a strategy. */
  constructor({ select }) {
    this.#select = select;
    this.#poll = new Poll({
      state: "strategies-state",
      seconds: 30,
      read: () => this.#read(),
      places: ["strategies-table"],
      show: (page) => this.#show(page),
    });
    at("strategies-health").addEventListener("change", () => this.#turn(1));
    at("strategies-text").addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.#turn(1), TYPING_MS);
    });
    at("strategies-before").addEventListener("click", () => this.#turn(this.#page - 1));
    at("strategies-after").addEventListener("click", () => this.#turn(this.#page + 1));
  }

  /** Show what the token of now may see. */
  restart() {
    this.#turn(1);
  }

  #turn(page) {
    this.#page = page;
    at("strategies-before").hidden = at("strategies-after").hidden = true;
    this.#poll.clear();
    this.#poll.now();
  }

  #read() {
    const query = { page: this.#page, page_size: PAGE_SIZE, sort: "id.asc" };
    const [health, text] = [at("strategies-health").value, at("strategies-text").value.trim()];
    if (health !== "") query.health = health;
    if (text !== "") query.q = text;
    return get("/gui/strategies", "strategies", {}, query);
  }

  #show(page) {
    const columns = [
      { title: "Strategy", opens: true, text: (row) => row.id },
      { title: "Account", kind: "long", text: (row) => row.account },
      { title: "Health", show: (row) => badge(row.health, HEALTH_LEVELS[row.health]) },
      { title: "Because", text: (row) => row.health_reasons.join("; ") || "–" },
      { title: "Checked (UTC)", show: (row) => time(row.last_checked_at) },
      { title: "Tags", wide: true, text: (row) => row.tags.join(", ") || "–" },
      { title: "Owner", kind: "long", wide: true, text: (row) => row.owner },
    ];
    const isFiltered = at("strategies-health").value !== "" || at("strategies-text").value !== "";
    const last = Math.max(1, Math.ceil(Number(page.total) / PAGE_SIZE));
    at("strategies-before").hidden = this.#page <= 1;
    at("strategies-after").hidden = this.#page >= last;
    const shown = table("Strategies", columns, page.items, {
      key: (row) => `${row.account} ${row.id}`,
      select: (row) => this.#select(row.id, row.account),
      quiet: true,
      level: (row) => (row.health === "unhealthy" ? "bad" : null),
      empty: isFiltered ? "No such strategies." : "There are no strategies yet: the first order of a strategy registers it.",
    });
    fill(at("strategies-table"), shown, ...(last > 1 ? [element("p", {}, `Page ${page.page} of ${last}, ${page.total} strategies`)] : []));
  }
}
