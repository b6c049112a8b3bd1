"use strict";
// What is drawn of a line leads to it; lines are found by their text, and those that take no time can be left out.
document.addEventListener("click", (event) => {
  const drawn = event.target.closest("[data-line]");
  if (drawn && document.getElementById(drawn.dataset.line)) location.hash = drawn.dataset.line;
});
const find = document.getElementById("find");
const costly = document.getElementById("costly");
function choose() {
  const wanted = find.value.toLowerCase();
  for (const line of document.querySelectorAll(".line")) {
    const fits = !wanted || line.textContent.toLowerCase().includes(wanted);
    line.classList.toggle("hidden", !fits || (costly.checked && line.classList.contains("free")));
  }
}
find.addEventListener("input", choose);
costly.addEventListener("change", choose);
