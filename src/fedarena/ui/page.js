// Fetch the same address again and again, and update on the page only what has changed there.
"use strict";

const PATIENCE = 3000; // milliseconds until the next try when the server does not respond
let last = "";
let timer = 0;

// Make `old` equal to `now`, touching only what differs: scroll, selection and what is typed stay.
function morph(old, now) {
  if (old.isEqualNode(now)) return;
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || old.id !== now.id) {
    old.replaceWith(document.importNode(now, true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = now.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "hidden") old.removeAttribute(name);
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  morphChildren(old, now);
}

function morphChildren(old, now) {
  const named = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let place = old.firstChild;
  for (const wanted of [...now.childNodes]) {
    const same = wanted.id ? named.get(wanted.id) : undefined;
    if (same && same !== place) {
      old.insertBefore(same, place);
      place = same;
    } else if (!same && (!place || wanted.id || (place.id && now.querySelector(`#${CSS.escape(place.id)}`)))) {
      old.insertBefore(document.importNode(wanted, true), place);
      continue;
    }
    const next = place.nextSibling;
    morph(place, wanted);
    place = next;
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function filter() {
  const box = document.getElementById("find");
  if (!box) return;
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("tr[data-text]")) {
    const hide = !words.every((word) => row.dataset.text.includes(word));
    if (row.hidden !== hide) row.hidden = hide;
  }
}

// Show a hint beside a table that scrolls sideways.
function measure() {
  for (const box of document.querySelectorAll(".scroll")) {
    box.parentNode.classList.toggle("wider", box.scrollWidth > box.clientWidth + 1);
  }
}

function lost(isLost) {
  document.getElementById("gone").hidden = !isLost;
  document.getElementById("page").classList.toggle("stale", isLost);
}

async function look() {
  clearTimeout(timer);
  const page = document.getElementById("page");
  let wait = PATIENCE;
  try {
    const place = location.href;
    const answer = await fetch(place, { cache: "no-cache" });
    const text = await answer.text();
    if (text !== last && place === location.href) {
      const fresh = new DOMParser().parseFromString(text, "text/html");
      for (const id of ["page", "live"]) morph(document.getElementById(id), fresh.getElementById(id));
      if (document.title !== fresh.title) document.title = fresh.title;
      last = text;
      filter();
      measure();
    }
    lost(false);
    wait = Number(page.dataset.every);
  } catch {
    lost(true);
  }
  if (!document.hidden) timer = setTimeout(look, wait);
}

// Another axis is the same page with other words in its address: no need to load it again.
document.addEventListener("click", (event) => {
  const tab = event.target.closest(".tabs a");
  if (!tab || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", tab.href);
  look();
});
addEventListener("popstate", look);
document.addEventListener("input", (event) => event.target.id === "find" && filter());
document.addEventListener("visibilitychange", () => document.hidden || look());
timer = setTimeout(look, Number(document.getElementById("page").dataset.every));
addEventListener("resize", measure);
filter();
measure();
