// What the theme leaves out for readers who use a keyboard or a screen reader.
document.addEventListener("DOMContentLoaded", () => {
  // Code and tables that scroll sideways can be focused, and then scrolled with the arrow keys.
  const mark = () => {
    for (const box of document.querySelectorAll("pre, .table-wrapper")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  mark();
  window.addEventListener("resize", mark);
  // The captions of the navigation are headings, which need a level.
  for (const caption of document.querySelectorAll(".caption[role=heading]")) {
    caption.setAttribute("aria-level", "2");
  }
});
