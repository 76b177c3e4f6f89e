// The user's tokens. They are kept in the tab's session storage, which ends with the tab, and are only ever sent in a header.
import { tokenClaims } from "./text.js";

const KINDS = ["account", "strategies"];
const KEY = (kind) => `switchyard.token.${kind}`;

const rejected = new Map(); // kind -> why the server did not accept the token
const listeners = [];

/** Call `listener` with the kinds of tokens that were added, removed or rejected. */
export function onChange(listener) {
  listeners.push(listener);
}

/** The token of a kind; null where there is none, or where the server rejected it. */
export function tokenOf(kind) {
  return rejected.has(kind) ? null : sessionStorage.getItem(KEY(kind));
}

/** Why there is no usable token of a kind, for people. */
export function whyNot(kind) {
  const problem = rejected.get(kind);
  if (problem !== undefined) return `The token was rejected: ${problem}. Paste a new one.`;
  return kind === "account" ? "Paste a token of an account to see this." : "Paste a token for strategies to see this.";
}

/** What the held token of a kind says about itself; null where there is none. */
export function claimsOf(kind) {
  const token = sessionStorage.getItem(KEY(kind));
  return token === null ? null : tokenClaims(token);
}

/** Whether the account's token names a scope; the server decides by itself. */
export function hasScope(scope) {
  const claims = claimsOf("account");
  return typeof claims?.scope === "string" && claims.scope.split(" ").includes(scope);
}

/** Keep the tokens of a text, separated by white space; returns what is wrong with it, or null. */
export function add(text) {
  const tokens = text.replaceAll(/\bBearer\b/gi, " ").split(/\s+/).filter((each) => each !== "");
  const found = new Map();
  for (const token of tokens) {
    const claims = tokenClaims(token);
    if (claims === null) return "This is not a JSON Web Token: it has three parts, separated by points.";
    found.set(kindOf(claims), token);
  }
  if (found.size === 0) return "Paste a token.";
  if (found.size < tokens.length) return "Paste at most one token of an account and one for strategies.";
  for (const [kind, token] of found) {
    sessionStorage.setItem(KEY(kind), token);
    rejected.delete(kind);
  }
  changed([...found.keys()]);
  return null;
}

/** Remove all tokens from this tab. */
export function forget() {
  for (const kind of KINDS) sessionStorage.removeItem(KEY(kind));
  rejected.clear();
  changed(KINDS);
}

/** Stop using a token that the server rejected: repeating it would count as guessing. */
export function reject(kind, token, problem) {
  if (sessionStorage.getItem(KEY(kind)) !== token || rejected.has(kind)) return;
  rejected.set(kind, problem);
  changed([kind]);
}

function kindOf(claims) {
  const audiences = [claims.aud].flat();
  return audiences.some((each) => each === "pdca" || each === "pdca.gui") ? "strategies" : "account";
}

function changed(kinds) {
  for (const listener of listeners) listener(kinds);
}
