// Search results have excerpts where pages are served over HTTP; browsers forbid fetch from disk.
DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol.startsWith("http");

document.addEventListener("DOMContentLoaded", () => {
  // A column without a title has no header cell, which a screen reader would announce.
  for (const header of document.querySelectorAll(".content th")) {
    if (!header.textContent.trim()) header.replaceWith(document.createElement("td"));
  }
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  // What scrolls can be scrolled by keyboard.
  for (const part of document.querySelectorAll(".content pre, .content table, .math")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
});
