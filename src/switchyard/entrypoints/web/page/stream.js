// Follows the account's stream and connects again after every end, at the last event that was received.
import { open } from "./api.js";
import { READS } from "./reads.js";
import * as session from "./session.js";
import { Frames, parseExact, picked } from "./text.js";

// Three of the server's comments may be missing (SSE_KEEPALIVE_SEC, 15 s by default) before the connection counts as lost.
const SILENCE_MS_MAX = 45_000;
const WAIT_MS_MAX = 30_000;
// A browser has six connections to one server: those of hidden tabs would be missing where the user looks.
const HIDDEN_MS_MAX = 30_000;

export class Stream {
  #life = 0; #lastEventId = null; #controller = new AbortController(); #take; #say;

  /** `take(event, data)` gets every message; `say(level, text)` whether the stream is live. */
  constructor({ take, say }) {
    this.#take = take;
    this.#say = say;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) setTimeout(() => document.hidden && this.#controller.abort("hidden"), HIDDEN_MS_MAX);
    });
  }

  /** Begin anew, with the token of now and without what was missed before. */
  async start() {
    const life = (this.#life += 1);
    this.#controller.abort("replaced");
    this.#lastEventId = null;
    let failures = 0;
    let lostAt = null;
    while (life === this.#life) {
      if (session.tokenOf("account") === null) {
        this.#say("unknown", "Not connected: no valid token of an account");
        return;
      }
      this.#say(lostAt === null ? "busy" : "bad", lostAt === null ? "Connecting …" : `Connection lost at ${lostAt}, trying again`);
      const problem = await this.#follow(life, () => {
        failures = 0;
        lostAt = null;
        this.#say("good", "Live");
      });
      if (life !== this.#life) return;
      if (problem === "hidden") {
        this.#say("unknown", "Paused while this tab is hidden");
        await shown();
        continue;
      }
      lostAt ??= `${new Date().toISOString().slice(11, 19)} UTC`;
      const wait = Math.min(WAIT_MS_MAX, 500 * 2 ** failures) * (0.5 + Math.random() / 2);
      failures += 1;
      this.#say("bad", `Connection lost at ${lostAt} (${problem}), trying again`);
      await new Promise((resume) => setTimeout(resume, wait));
    }
  }

  /** Read until the stream ends; returns why it ended. */
  async #follow(life, onMessage) {
    const controller = (this.#controller = new AbortController());
    const onSilence = () => controller.abort(`silent for ${SILENCE_MS_MAX / 1000} s`);
    let silence = setTimeout(onSilence, SILENCE_MS_MAX);
    try {
      const token = session.tokenOf("account");
      const reader = await open("/stream", "account", this.#lastEventId, controller.signal);
      const frames = new Frames();
      for (;;) {
        const { value, done } = await reader.read();
        if (life !== this.#life) return "replaced"; // what it read is of the token before
        if (done) return "the gateway ended it";
        clearTimeout(silence);
        silence = setTimeout(onSilence, SILENCE_MS_MAX);
        onMessage();
        for (const message of frames.add(value)) this.#receive(message, token);
      }
    } catch (error) {
      return controller.signal.aborted ? controller.signal.reason : error.message;
    } finally {
      clearTimeout(silence);
      controller.abort();
    }
  }

  #receive({ id, event, data }, token) {
    const fields = READS[`/stream ${event}`];
    if (fields !== undefined) {
      const body = picked(parseExact(data), fields);
      if (event === "token_expired") session.reject("account", token, body.message);
      this.#take(event, body);
    }
    if (id !== null) this.#lastEventId = id; // after the message was taken: it is not taken twice, and never left out
  }
}

/** Wait until the user looks at this tab. */
function shown() {
  return new Promise((resume) => {
    const check = () => document.hidden || (document.removeEventListener("visibilitychange", check), resume());
    document.addEventListener("visibilitychange", check);
    check();
  });
}
