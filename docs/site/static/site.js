// Buttons of the theme are named by what they show, which is more than their labels say.
addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll(".search-button-field, .version-switcher__button"))
    button.removeAttribute("aria-label");
  // What is scrolled can be scrolled with keys.
  for (const table of document.querySelectorAll(".bd-article table"))
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
});
