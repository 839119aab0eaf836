// Keeps a page up to date: asks for the same page every two seconds and swaps what is marked data-live and has changed.
// Everything else stays: focus, scroll, text in a form, what is folded open. Without this script the page has a link.
"use strict";

const EVERY = 2000; // milliseconds
const PATIENCE = 10000; // for one answer

const address = new URL(document.body.dataset.address, location.href);
address.username = address.password = ""; // a URL with credentials cannot be fetched; the browser sends them anyway
const note = document.getElementById("connection");
const TYPED = "input[id], textarea[id], select[id]";
const held = new Map(); // the server's own HTML of each live element: the document's may since have been folded open
let tag = "";
let ahead = 0; // milliseconds by which the service's clock is ahead of this one

for (const live of document.querySelectorAll("[data-live]")) held.set(live.id, live.innerHTML);

async function look() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const answer = await fetch(address, { headers, signal: AbortSignal.timeout(PATIENCE) });
  readClock(answer.headers.get("Date"));
  if (answer.status === 304) return;
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const places = looked(), line = focusedLine();
  for (const live of document.querySelectorAll("[data-live]")) refresh(live, fresh.getElementById(live.id));
  drawCharts();
  if (line) document.querySelectorAll(line.chart)[line.order]?.focus({ preventScroll: true });
  tick();
  reach();
  hold(places);
  tag = answer.headers.get("ETag") || "";
}

function refresh(live, fresh) {
  if (!fresh || fresh.innerHTML === held.get(live.id)) return;
  held.set(live.id, fresh.innerHTML);
  const kept = state(live);
  live.replaceChildren(...fresh.childNodes);
  restore(live, kept);
}

// What is looked at: what has the focus if it can be seen, else what is in the middle; and where it and all around it
// are, from the inside out. The beginning of the page is left where it is.
function looked() {
  const focus = document.activeElement;
  const { top, bottom } = focus.getBoundingClientRect();
  const seen = focus !== document.body && bottom > 0 && top < innerHeight;
  if (!seen && !scrollY) return [];
  const places = [];
  let one = seen ? focus : document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  while ((one = one?.closest("[id]"))) {
    places.push([one.id, one.getBoundingClientRect().top]);
    one = one.parentElement;
  }
  return places;
}

// Keeps it there, whatever has grown or gone above it.
function hold(places) {
  const [id, top] = places.find(([id]) => document.getElementById(id)) || [];
  if (id) scrollBy({ top: document.getElementById(id).getBoundingClientRect().top - top, behavior: "instant" });
}

// What a field holds as the server has sent it.
function served(field) {
  const options = [...(field.options || [])];
  return options.length ? (options.find((one) => one.defaultSelected) || options[0]).value : field.defaultValue;
}

// What a reader has done to an element: folds and what is typed by their id, sideways scrolling and the focus by their
// place.
function state(live) {
  const typed = [...live.querySelectorAll(TYPED)].filter((one) => one.value !== served(one));
  const folds = new Map([...live.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  return { folds, scrolled, typed: new Map(typed.map((one) => [one.id, one.value])), focus: reachable(live).indexOf(document.activeElement) };
}

function restore(live, kept) {
  for (const one of live.querySelectorAll("details[id]")) if (kept.folds.has(one.id)) one.open = kept.folds.get(one.id);
  for (const one of live.querySelectorAll(TYPED)) if (kept.typed.has(one.id)) one.value = kept.typed.get(one.id);
  live.querySelectorAll(".scroll").forEach((one, place) => (one.scrollLeft = kept.scrolled[place] || 0));
  if (kept.focus >= 0) reachable(live)[kept.focus]?.focus({ preventScroll: true });
}

// The button of a chart's line that has the focus; they are made anew with their chart.
function focusedLine() {
  const button = document.activeElement.closest(".lines button");
  if (!button) return null;
  const chart = `#${button.closest("figure").id} .lines button`;
  return { chart, order: [...document.querySelectorAll(chart)].indexOf(button) };
}

function reachable(live) {
  const all = [...live.querySelectorAll("a[href], summary, input, textarea, select, button")];
  return all.filter((one) => !one.closest(".lines"));
}

// An HTTP date says whole seconds.
function readClock(date) {
  const difference = Date.parse(date) + 500 - Date.now();
  ahead = Math.abs(difference) > 1500 ? difference : 0; // NaN is not
}

// Times that go on by themselves: since when, and until when.
function tick() {
  if (document.hidden) return;
  const now = Date.now() + ahead;
  for (const one of document.querySelectorAll("time[data-ago]")) put(one, `${span(now - Date.parse(one.dateTime))} ago`);
  for (const one of document.querySelectorAll("time[data-until]")) {
    const left = Date.parse(one.dateTime) - now;
    put(one, left > 0 ? `in ${span(left)}` : "has passed");
  }
}

function put(element, text) {
  if (!element.title) element.title = element.textContent;
  if (element.textContent !== text) element.textContent = text;
}

function span(milliseconds) {
  const whole = Math.max(0, Math.round(milliseconds / 1000));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} days`;
}

// A box that scrolls is reached by keyboard, and has a name.
function reach() {
  for (const one of document.querySelectorAll(".scroll")) {
    const scrolls = one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight;
    one.tabIndex = scrolls ? 0 : -1;
    if (!scrolls) continue;
    one.setAttribute("role", "group");
    one.setAttribute("aria-label", one.querySelector("caption")?.textContent ?? "text that scrolls");
  }
}

// Tabs of what lies below one another: one of them is seen, chosen by mouse, by arrow keys or by the address.
function makeTabs(box) {
  const panels = [...box.querySelectorAll(":scope > [data-tab]")];
  const list = Object.assign(document.createElement("div"), { className: "tablist" });
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", box.dataset.tabs);
  list.append(...panels.map((panel) => tabOf(panel)));
  list.addEventListener("click", ({ target }) => panels.some((one) => `tab-${one.id}` === target.id) && choose(list, panels, target));
  list.addEventListener("keydown", (event) => step(event, list, panels));
  box.prepend(list);
  const follow = () => choose(list, panels, list.children[Math.max(0, panels.findIndex(isAddressed))]);
  addEventListener("hashchange", () => panels.some(isAddressed) && follow());
  follow();
}

function tabOf(panel) {
  const tab = Object.assign(document.createElement("button"), { type: "button", id: `tab-${panel.id}` });
  tab.setAttribute("role", "tab");
  tab.textContent = panel.dataset.tab;
  tab.setAttribute("aria-controls", panel.id);
  panel.setAttribute("role", "tabpanel");
  panel.setAttribute("aria-labelledby", tab.id);
  return tab;
}

function isAddressed(panel) {
  return `#${panel.id}` === location.hash;
}

function choose(list, panels, tab) {
  [...list.children].forEach((one, order) => {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
    panels[order].hidden = one !== tab;
  });
  reach();
}

function step(event, list, panels) {
  const tabs = [...list.children];
  const at = tabs.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  const tab = tabs.at(to % tabs.length);
  choose(list, panels, tab);
  tab.focus();
}

function say(text, kind) {
  if (note.textContent !== text) note.textContent = text;
  note.className = kind;
}

async function keep() {
  if (!document.hidden) {
    try {
      await look();
      say("Live", "good");
    } catch {
      say("No answer; shown is the last known state", "warn");
    }
  }
  setTimeout(keep, EVERY);
}

setTimeout(keep, EVERY);
document.querySelectorAll("[data-tabs]").forEach(makeTabs);
if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
setInterval(tick, 1000);
tick();
reach();
addEventListener("resize", reach);
document.addEventListener("visibilitychange", () => document.hidden || look().catch(() => {}));
