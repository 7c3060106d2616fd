// What the theme leaves to be done for the keyboard and for screen readers.

function makeScrollableFocusable() {
  for (const element of document.querySelectorAll("pre, .table-wrapper, .math")) {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}

function nameLandmarks() {
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = 2;
}

function mendMarkup() {
  // Corners of tables are no headings, and parameters of a signature no definitions.
  for (const cell of document.querySelectorAll("th")) {
    if (!cell.textContent.trim()) cell.replaceWith(document.createElement("td"));
  }
  for (const list of document.querySelectorAll(".sig > dl")) {
    const lines = [...list.children].map((line) => renamed(line, "parameter"));
    const parameters = renamed(list, "parameters");
    parameters.replaceChildren(...lines);
    list.replaceWith(parameters);
  }
}

function renamed(element, className) {
  const span = document.createElement("span");
  span.className = className;
  span.append(...element.childNodes);
  return span;
}

addEventListener("DOMContentLoaded", nameLandmarks);
addEventListener("DOMContentLoaded", mendMarkup);
addEventListener("load", makeScrollableFocusable);
addEventListener("resize", makeScrollableFocusable);
