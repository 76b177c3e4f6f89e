// Connects the parts of the page.
import { Account } from "./account.js";
import { Detail } from "./detail.js";
import { at, fill, pairs } from "./dom.js";
import { Orders } from "./orders.js";
import * as session from "./session.js";
import { Strategies } from "./strategies.js";
import { Stream } from "./stream.js";
import { systemPart } from "./system.js";

const detail = new Detail();
const orders = new Orders({ select: (id) => detail.order(id) });
const account = new Account();
const strategies = new Strategies({ select: (id, account) => detail.strategy(id, account) });
const stream = new Stream({ take, say: sayLive });
const resystemPart = systemPart({ showDoubts });

function take(event, data) {
  if (event === "order_update") {
    orders.update(data);
    detail.changed(data.orderId);
    account.changed();
  } else if (event === "resync_required") {
    orders.reload();
    account.changed();
  }
}

function sayLive(level, text) {
  // Without the stream the orders are as old as their last reading: read them now, or show that they cannot be read.
  if (level === "bad" && at("live").dataset.level !== "bad") orders.reload();
  at("live").textContent = text;
  at("live").dataset.level = level;
}

function showDoubts() {
  orders.filter("doubt");
  at("orders").scrollIntoView();
  at("orders-filter").focus();
}

function restart(kinds) {
  showTokens();
  detail.close();
  if (kinds.includes("strategies")) strategies.restart();
  if (!kinds.includes("account")) return;
  orders.restart();
  account.restart();
  resystemPart();
  stream.start();
}

function showTokens() {
  const claims = session.claimsOf("account");
  at("who").textContent = claims === null ? "No account" : `Account ${claims.accountId ?? claims.sub}`;
  const held = [];
  for (const [kind, name] of [["account", "Token of an account"], ["strategies", "Token for strategies"]]) {
    const found = session.claimsOf(kind);
    if (found === null) continue;
    const until = Number.isFinite(found.exp) ? new Date(found.exp * 1000).toISOString().slice(0, 16).replace("T", " ") : "unknown";
    const use = session.tokenOf(kind) === null ? session.whyNot(kind) : `valid until ${until} UTC`;
    held.push([name, `${kind === "account" ? (found.accountId ?? found.sub) : found.sub}: ${found.scope ?? "no scope"}, ${use}`]);
  }
  fill(at("tokens-held"), ...pairs(held).children);
  if (session.tokenOf("account") === null) at("tokens").hidden = false;
}

at("tokens-open").addEventListener("click", () => {
  at("tokens").hidden = !at("tokens").hidden;
  if (!at("tokens").hidden) at("tokens-text").focus();
});

at("tokens-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const problem = session.add(at("tokens-text").value);
  at("tokens-problem").textContent = problem ?? "";
  at("tokens-problem").hidden = problem === null;
  if (problem !== null) return;
  at("tokens-text").value = "";
  at("tokens").hidden = session.tokenOf("account") !== null;
});

at("tokens-forget").addEventListener("click", () => session.forget());

session.onChange(restart);
restart(["account", "strategies"]);
