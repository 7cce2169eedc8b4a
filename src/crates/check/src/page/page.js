"use strict";
const detail = document.getElementById("detail");
let shown = null;
function show(bar) {
  if (shown) shown.classList.remove("shown");
  shown = bar;
  bar.classList.add("shown");
  detail.textContent = bar.querySelector("title").textContent;
}
for (const bar of document.querySelectorAll("a.bar")) {
  bar.addEventListener("pointerenter", () => show(bar));
  bar.addEventListener("focus", () => show(bar));
  bar.addEventListener("click", (event) => { event.preventDefault(); show(bar); });
}
