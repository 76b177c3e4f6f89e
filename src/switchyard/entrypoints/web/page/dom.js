// Builds the page's elements. Every value becomes a text node or an attribute, never markup.
import { numberParts, shortTime } from "./text.js";

/** The element of the page with an id. */
export function at(id) {
  return document.getElementById(id);
}

/** A new element; children are elements or texts, and null is left out. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A time of the API, with the whole of it as a tooltip. */
export function time(text) {
  if (text === null || text === undefined) return "–";
  return element("time", { datetime: text, title: text }, shortTime(text, new Date().toISOString().slice(0, 10)));
}

/** A number as its exact text; groups of digits are set apart by style only, so that it can be copied. */
export function number(text, fractionWidth = 0) {
  const parts = (typeof text === "string" ? numberParts(text) : null) ?? { groups: [text ?? "–"], fraction: "" };
  const fraction = element("span", { class: "fraction" }, parts.fraction);
  if (fractionWidth > 0) fraction.style.minWidth = `${fractionWidth}ch`;
  return element("span", { class: "digits" }, ...parts.groups.map((group) => element("span", {}, group)), fraction);
}

/** A word with a level (good, busy, warn, bad, unknown), which gives it a colour and a sign. */
export function badge(text, level) {
  return element("span", { class: "badge", "data-level": level }, text);
}

/**
 * A table. A column has a `title`, and `text` or `show` of a row; `kind: "number"` aligns at the decimal point, "long" cuts
 * long texts, `wide: true` hides it on a narrow screen. `select` of the options is called with the row of the column with
 * `opens: true`; `quiet` hides the caption where a heading says the same.
 */
export function table(caption, columns, rows, options = {}) {
  if (rows.length === 0) return element("p", { class: "empty" }, options.empty ?? "None.");
  const widths = columns.map((column) => (column.kind === "number" ? fractionWidth(column, rows) : 0));
  const head = columns.map((column) => element("th", { scope: "col", class: classOf(column) }, column.title));
  const body = rows.map((row) => {
    const cells = columns.map((column, index) => {
      const title = column.kind === "long" ? column.text(row) : null;
      return element("td", { class: classOf(column), title }, cell(column, row, widths[index], options));
    });
    return element("tr", { "data-level": options.level?.(row) ?? null }, ...cells);
  });
  const made = element(
    "table",
    {},
    element("caption", { class: options.quiet ? "quiet" : null }, caption),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
  // Focusable, so that a wide table can be scrolled with the keyboard.
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

/** Put new content into a place; the button that had the focus keeps it. */
export function fill(place, ...content) {
  const key = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = place.querySelector(".scroll")?.scrollLeft ?? 0;
  place.replaceChildren(...content);
  const scroll = place.querySelector(".scroll");
  if (scroll !== null) scroll.scrollLeft = scrolled;
  if (key === undefined) return;
  for (const button of place.querySelectorAll("[data-key]")) {
    if (button.dataset.key === key) button.focus({ preventScroll: true });
  }
}

/** Pairs of terms and descriptions. */
export function pairs(entries) {
  return element("dl", {}, ...entries.map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value))));
}

function cell(column, row, width, options) {
  if (column.opens === true) {
    const key = options.key(row);
    const button = element("button", { type: "button", class: "link", "data-key": key, title: key }, column.text(row));
    button.addEventListener("click", () => options.select(row));
    return button;
  }
  if (column.kind === "number") return number(column.text(row), width);
  return column.show ? column.show(row) : (column.text(row) ?? "–");
}

function fractionWidth(column, rows) {
  return Math.max(...rows.map((row) => (numberParts(column.text(row) ?? "")?.fraction ?? "").length));
}

function classOf(column) {
  const classes = [column.kind, column.wide ? "wide" : null].filter((each) => each);
  return classes.length === 0 ? null : classes.join(" ");
}
