// Light extras; the page is complete without them: a switch for the theme, hints at tables that scroll, tooltips.
"use strict";
(() => {
  const root = document.documentElement;
  const recall = () => { try { return localStorage.getItem("fedarena-theme"); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem("fedarena-theme", theme); } catch { /* private window */ } };
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = document.createElement("button");
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`);
  };
  if (recall()) root.dataset.theme = recall();
  button.type = "button";
  button.className = "theme";
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    store(root.dataset.theme);
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
  document.querySelector("header").prepend(button);

  // Show a hint beside a table that scrolls sideways.
  const measure = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      box.parentNode.classList.toggle("wider", box.scrollWidth > box.clientWidth + 1);
    }
  };
  measure();
  addEventListener("resize", measure);
  document.addEventListener("toggle", measure, true);

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  for (const title of document.querySelectorAll("svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  for (const cell of document.querySelectorAll("td[title]")) {
    cell.dataset.tip = cell.title;
    cell.removeAttribute("title");
  }
  document.addEventListener("pointermove", (event) => {
    const owner = event.target.closest?.("[data-tip]");
    tip.hidden = !owner;
    if (!owner) return;
    tip.textContent = owner.dataset.tip;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - height - 4))}px`;
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
})();
