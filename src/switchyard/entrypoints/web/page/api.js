// Reads the API: one request, its token, its time limit, and errors in one form.
import { READS } from "./reads.js";
import * as session from "./session.js";
import { parseExact, picked } from "./text.js";

const REQUEST_MS_MAX = 10_000;

/** A request that was not answered, or not with what it asked for. `status` is 0 without an answer. */
export class Problem extends Error {
  constructor(message, status = 0, reason = "") {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** Read JSON. `path` is the contract's, with its parameters in braces; `kind` names the token, null for none. */
export async function get(path, kind, parameters = {}, query = {}, accepted = [200]) {
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name) => encodeURIComponent(parameters[name]));
  const answer = await request(filled, kind, query);
  const text = await readText(answer);
  if (!accepted.includes(answer.status)) throw problemOf(answer, text, kind);
  try {
    return picked(parseExact(text), READS[path]);
  } catch {
    throw new Problem("the answer is not JSON", answer.status);
  }
}

/** Read text, without a token. */
export async function getText(path) {
  const answer = await request(path, null, {});
  const text = await readText(answer);
  if (answer.status !== 200) throw problemOf(answer, text, null);
  return text;
}

/** Open a stream of server-sent events; the caller ends it by `signal`. */
export async function open(path, kind, lastEventId, signal) {
  const token = usable(kind);
  const headers = { Authorization: `Bearer ${token}`, Accept: "text/event-stream" };
  if (lastEventId !== null) headers["Last-Event-ID"] = lastEventId;
  const answer = await send(path, headers, signal);
  if (answer.status !== 200) throw problemOf(answer, await readText(answer), kind, token);
  return answer.body.pipeThrough(new TextDecoderStream()).getReader();
}

async function request(path, kind, query) {
  const token = kind === null ? null : usable(kind);
  const text = new URLSearchParams(query).toString();
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const answer = await send(text === "" ? path : `${path}?${text}`, headers, AbortSignal.timeout(REQUEST_MS_MAX));
  answer.sentToken = token;
  return answer;
}

async function send(path, headers, signal) {
  try {
    return await fetch(path, { headers, signal, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "TimeoutError") throw new Problem(`no answer within ${REQUEST_MS_MAX / 1000} s`);
    throw new Problem("no connection to the gateway");
  }
}

async function readText(answer) {
  try {
    return await answer.text();
  } catch {
    throw new Problem("the connection ended during the answer");
  }
}

function usable(kind) {
  const token = session.tokenOf(kind);
  if (token === null) throw new Problem(session.whyNot(kind), 401, "NO_TOKEN");
  return token;
}

function problemOf(answer, text, kind, token = answer.sentToken) {
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    // A proxy may answer with something else.
  }
  const reason = body.reason ?? body.error ?? "";
  const message = body.message ?? (reason === "" ? `HTTP ${answer.status}` : reason);
  if (answer.status === 401 && kind !== null) session.reject(kind, token, message);
  return new Problem(message, answer.status, reason);
}
