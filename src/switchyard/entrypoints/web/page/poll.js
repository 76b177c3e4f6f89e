// A part of the page that is read again and again. It says truthfully how old it is and why it is not newer.
import { at } from "./dom.js";

const polls = [];

export class Poll {
  #state; #label; #read; #show; #milliseconds; #timer = null; #running = false; #again = false; #asOf = null; #life = 0;

  /** `state`: the id of the line that tells how old the data is. `read` gets it, `show` puts it on the page. */
  constructor({ state, label = "", read, show, seconds, places }) {
    this.#state = at(state);
    this.#label = label;
    this.#read = read;
    this.#show = show;
    this.#milliseconds = seconds * 1000;
    this.places = places.map(at);
    polls.push(this);
  }

  /** Read now, and from then on in intervals. */
  async now() {
    this.isStarted = true;
    if (this.#running) {
      this.#again = true; // what is being read may be from before the change that asks
      return;
    }
    clearTimeout(this.#timer);
    this.#running = true;
    const life = this.#life;
    if (this.#asOf === null) this.#say("Loading …", "busy");
    try {
      const data = await this.#read();
      if (life === this.#life) {
        this.#asOf = new Date();
        this.#show(data);
        this.#say(`As of ${utc(this.#asOf)}`, "good");
      }
    } catch (error) {
      if (life === this.#life) this.#fail(error);
    }
    this.#running = false;
    if (life !== this.#life && !this.#again) return;
    const wait = this.#again ? 0 : this.#milliseconds;
    this.#again = false;
    this.#timer = setTimeout(() => document.hidden || this.now(), wait);
  }

  /** Say that what is shown is of now, because the stream has changed it. */
  touch() {
    if (this.#asOf === null) return;
    this.#asOf = new Date();
    this.#say(`As of ${utc(this.#asOf)}`, "good");
  }

  /** Drop what is shown, such as that of another account, and stop; an answer that is under way is not shown. */
  clear() {
    this.isStarted = false;
    this.#life += 1;
    this.#asOf = null;
    clearTimeout(this.#timer);
    this.#say("", "unknown");
    for (const place of this.places) place.replaceChildren();
  }

  #fail(error) {
    const isOurs = error.name !== "Error" && !("status" in error);
    if (isOurs) console.error(error);
    const problem = isOurs ? `this page failed: ${error.message}` : error.message;
    if (this.#asOf === null) this.#say(problem, error.reason === "NO_TOKEN" ? "unknown" : "bad");
    else this.#say(`Not updated since ${utc(this.#asOf)}: ${problem}`, "bad");
  }

  #say(text, level) {
    this.#state.textContent = this.#label + text;
    this.#state.dataset.level = level;
    for (const place of this.places) place.classList.toggle("stale", level === "bad");
  }
}

/** The time of this computer's clock, in UTC as the rest of the page. */
export function utc(date) {
  return `${date.toISOString().slice(11, 19)} UTC`;
}

// A hidden page reads nothing; when it is shown again it must not show old data as if it were new.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const poll of polls) if (poll.isStarted) poll.now();
});
