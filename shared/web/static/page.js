// Keeps a page up to date: asks for the same page every two seconds and swaps what is marked data-live and has changed.
// Everything else stays: focus, scroll, text in a form, what is folded open. Without this script the page has a link.
"use strict";

const EVERY = 2000; // milliseconds
const PATIENCE = 10000; // for one answer

const address = new URL(document.body.dataset.address, location.href);
address.username = address.password = ""; // a URL with credentials cannot be fetched; the browser sends them anyway
const note = document.getElementById("connection");
const held = new Map(); // the server's own HTML of each live element: the document's may since have been folded open
let tag = "";

for (const live of document.querySelectorAll("[data-live]")) held.set(live.id, live.innerHTML);

async function look() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const answer = await fetch(address, { headers, signal: AbortSignal.timeout(PATIENCE) });
  if (answer.status === 304) return;
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const live of document.querySelectorAll("[data-live]")) refresh(live, fresh.getElementById(live.id));
  tag = answer.headers.get("ETag") || "";
}

function refresh(live, fresh) {
  if (!fresh || fresh.innerHTML === held.get(live.id)) return;
  held.set(live.id, fresh.innerHTML);
  const kept = state(live);
  live.replaceChildren(...fresh.childNodes);
  restore(live, kept);
}

// What a reader has done to an element: folds by their id, sideways scrolling and the focus by their place.
function state(live) {
  const folds = new Map([...live.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  return { folds, scrolled, focus: reachable(live).indexOf(document.activeElement) };
}

function restore(live, kept) {
  for (const one of live.querySelectorAll("details[id]")) if (kept.folds.has(one.id)) one.open = kept.folds.get(one.id);
  live.querySelectorAll(".scroll").forEach((one, place) => (one.scrollLeft = kept.scrolled[place] || 0));
  if (kept.focus >= 0) reachable(live)[kept.focus]?.focus({ preventScroll: true });
}

function reachable(live) {
  return [...live.querySelectorAll("a[href], summary, input, button")];
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
document.addEventListener("visibilitychange", () => document.hidden || look().catch(() => {}));
