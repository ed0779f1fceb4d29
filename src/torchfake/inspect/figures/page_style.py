"""The style and the script of a page.

Input: nothing. Output: two texts. Invariant: nothing is requested from the network; without the
script the page is complete.
"""

STYLE = """
:root {color-scheme: light dark; --ink: #1d2129; --dim: #5c6470; --paper: #fff; --line: #d9dde3;
  --card: #f4f6f8; --yes: #1a7f37; --tight: #9a6700; --no: #c0282d}
@media (prefers-color-scheme: dark) {:root {--ink: #e4e7eb; --dim: #a2aab5; --paper: #14171c;
  --line: #353b44; --card: #1f242b; --yes: #4ac26b; --tight: #d4a72c; --no: #ff7b72}}
* {box-sizing: border-box}
body {font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1200px; padding: 1em;
  color: var(--ink); background: var(--paper)}
h1 {font-size: 1.5em; margin: .2em 0; overflow-wrap: anywhere}
h2 {font-size: 1.15em; margin: 1.6em 0 .6em; padding-bottom: .2em;
  border-bottom: 1px solid var(--line)}
.verdict {margin: .3em 0; overflow-wrap: anywhere}
.verdict.yes, .verdict.tight, .verdict.no {font-weight: 600; padding-left: .6em;
  border-left: .3em solid}
.verdict.yes {color: var(--yes)} .verdict.tight {color: var(--tight)} .verdict.no {color: var(--no)}
.cards {display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .6em;
  margin: .8em 0}
.cards div {background: var(--card); border-radius: .5em; padding: .5em .7em}
.cards b {display: block; font-size: 1.02em} .cards span {color: var(--dim); font-size: .87em}
section > svg {display: block; max-width: 100%}
.tf {max-width: 100%}
.tf .row > :first-child, .tf th:first-child, .tf td:first-child {position: sticky; left: 0;
  background: var(--paper); z-index: 1}
.tf .row:hover > :first-child {background: var(--card)}
.tools {display: flex; flex-wrap: wrap; gap: .5em; margin-bottom: .5em}
.tools input {flex: 1 1 12em; min-width: 0; font: inherit; padding: .2em .5em; color: inherit;
  background: var(--card); border: 1px solid var(--line); border-radius: .3em}
.tools button {font: inherit; color: inherit; background: var(--card); cursor: pointer;
  border: 1px solid var(--line); border-radius: .3em; padding: .2em .7em}
.hidden {display: none !important}
@media (max-width: 600px) {body {padding: .6em; font-size: 14px}
  .cards {grid-template-columns: repeat(2, 1fr)} .tf {font-size: 12px}}
"""

SCRIPT = """
for (const tree of document.querySelectorAll(".tf")) {
  if (!tree.querySelector("details")) continue;
  const tools = document.createElement("div");
  tools.className = "tools";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "filter modules";
  input.setAttribute("aria-label", "filter modules");
  const button = (label, isOpen) => {
    const made = document.createElement("button");
    made.textContent = label;
    made.onclick = () => tree.querySelectorAll("details").forEach((d) => d.open = isOpen);
    return made;
  };
  tools.append(input, button("Expand all", true), button("Collapse all", false));
  tree.before(tools);
  const rows = [...tree.querySelectorAll(".row:not(.head)")];
  input.oninput = () => {
    const wanted = input.value.toLowerCase();
    const shown = new Set();
    for (const row of rows) {
      if (!row.textContent.toLowerCase().includes(wanted)) continue;
      shown.add(row);
      for (let up = row.closest("details"); up; up = up.parentElement.closest("details")) {
        shown.add(up.querySelector("summary"));
        if (wanted) up.open = true;
      }
    }
    for (const row of rows) row.classList.toggle("hidden", !shown.has(row));
  };
}
"""
