// Keys only; every page works without them.
"use strict";

const rows = () => [...document.querySelectorAll(".row")];

function follow(relation) {
  const link = document.querySelector(`link[rel="${relation}"]`);
  if (link) location.assign(link.href);
}

function choose(step) {
  const all = rows();
  const chosen = all.findIndex((row) => row.classList.contains("chosen"));
  const next = chosen < 0 ? (step > 0 ? 0 : all.length - 1) : chosen + step;
  if (!all[next]) return;
  if (chosen >= 0) all[chosen].classList.remove("chosen");
  all[next].classList.add("chosen");
  all[next].querySelector(".open").focus({ preventScroll: true });
  all[next].scrollIntoView({ block: "nearest" });
}

const keys = {
  j: () => (rows().length ? choose(1) : follow("next")),
  k: () => (rows().length ? choose(-1) : follow("prev")),
  ArrowRight: () => follow("next"),
  ArrowLeft: () => follow("prev"),
  u: () => follow("up"),
  "/": () => document.getElementById("find")?.select(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  // A box that scrolls sideways keeps its arrows.
  if (event.key.startsWith("Arrow") && event.target.closest(".wide, .beside")?.scrollWidth > innerWidth) return;
  const act = keys[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

// Empty fields would only lengthen the address that people share.
for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  });
}

// Coming back with the browser's own button finds the fields as they were.
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll(":disabled")) field.disabled = false;
});

// A link into a folded part opens it.
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
