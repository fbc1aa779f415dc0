// The parts of the page beside the text: a column that scrolls by itself, or on a small screen a sheet at the bottom.

import { $, button } from "./view.js";

const small = matchMedia("(max-width: 63.99rem)");

/** Give the sections of #panel their tabs. `open(id)` brings a section into sight; on a small screen it opens the sheet. */
export function createSheet() {
  const [panel, tabs, body] = ["panel", "panel-tabs", "panel-body"].map($);
  const sections = [...body.querySelectorAll(":scope > section")];
  let target = null; // the section that was asked for, until the panel is scrolled by hand
  const close = button("Close", shut, { class: "close" });
  const buttons = sections.map((section) => button(section.dataset.tab, () => toggle(section), { "aria-controls": section.id }));
  tabs.append(...buttons, close);
  const mark = (current) => sections.forEach((section, i) => buttons[i].setAttribute("aria-current", String(section === current)));

  function toggle(section) {
    const isCurrent = buttons[sections.indexOf(section)].getAttribute("aria-current") === "true";
    if (small.matches && panel.classList.contains("open") && isCurrent) shut();
    else open(section.id);
  }

  function open(id) {
    panel.classList.add("open");
    target = $(id);
    toTarget();
    mark(target);
  }

  function shut() {
    panel.classList.remove("open");
    mark(small.matches ? null : sections[0]);
  }

  const toTarget = () => { if (target) body.scrollTop = target.offsetTop; };
  const watch = new ResizeObserver(toTarget); // what is above may still grow
  for (const section of sections) watch.observe(section);
  for (const kind of ["wheel", "touchmove", "pointerdown", "focusin"]) body.addEventListener(kind, () => { target = null; }, { passive: true });
  body.addEventListener("scroll", () => mark(target ?? sections.findLast((section) => section.offsetTop <= body.scrollTop + 40) ?? sections[0]));
  shut();
  small.addEventListener("change", shut);
  return {
    open,
    get isSmall() { return small.matches; },
    /** On a small screen: the text at the top, and the keyboard of the screen away. */
    showStory() {
      if (!small.matches) return;
      document.activeElement?.blur();
      const form = $("write-form");
      const gap = parseFloat(getComputedStyle(panel.parentElement).rowGap);
      scrollTo(0, form.offsetTop + form.offsetHeight + gap);
    },
  };
}
