"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function searchField(words, search) {
  const input = element("input", {type: "search", placeholder: words, ariaLabel: words});
  const found = element("span", {role: "status"});
  const tools = element("div", {className: "tools"}, input, found);
  input.oninput = () => {
    const wanted = input.value.trim().toLowerCase();
    const number = search(wanted);
    found.textContent = !wanted ? "" : number ? `${number} found` : "no match";
  };
  return tools;
}

const button = (words, onclick) => element("button", {type: "button", onclick}, words);

// Tables of modules: a filter; all rows opened or closed.
for (const tree of all(".wide:has(details)")) {
  const rows = all(".row:not(.head)", tree);
  for (const row of rows) row.firstElementChild.title = row.firstElementChild.textContent;
  const tools = searchField("filter modules", (wanted) => {
    const shown = new Set();
    const found = rows.filter((row) => row.textContent.toLowerCase().includes(wanted));
    for (const row of found) {
      shown.add(row);
      for (let up = row.closest("details"); up; up = up.parentElement.closest("details")) {
        shown.add(up.querySelector("summary"));
        if (wanted) up.open = true;
      }
    }
    for (const row of rows) row.classList.toggle("hidden", !shown.has(row));
    return found.length;
  });
  const open = (isOpen) => () => all("details", tree).forEach((each) => each.open = isOpen);
  tools.append(button("Expand all", open(true)), button("Collapse all", open(false)));
  tree.before(tools);
}

for (const code of all("pre")) {
  code.tabIndex = 0;
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
  });
  code.before(element("div", {className: "tools"}, copy));
}

// Graphs. Folding a frame hides what is in it, and takes the room that becomes free out of the
// drawing: positions are mapped, and none is computed anew.
const GAP = {x: 18, y: 30};
const FEW = 40; // boxes that a graph begins with
const LEAST = 8 / 11; // the scale at which its smallest texts have 8 pixels

function mapping(taken, gap) {
  const merged = [];
  for (const [low, high] of taken.sort((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last && low <= last[1]) last[1] = Math.max(last[1], high);
    else merged.push([low, high]);
  }
  return (value) => {
    let at = merged[0]?.[0] ?? 0, before = at;
    if (value <= at) return value;
    for (const [low, high] of merged) {
      const free = low - before, kept = Math.min(free, gap);
      if (value < low) return at + (value - before) * (free ? kept / free : 1);
      at += kept;
      if (value <= high) return at + value - low;
      at += high - low;
      before = high;
    }
    return at + Math.min(value - before, gap);
  };
}

class Graph {
  constructor(svg) {
    this.svg = svg;
    this.scale = 1;
    this.folded = new Set();
    this.size = [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height];
    this.margin = svg.viewBox.baseVal.x;
    this.nodes = new Map(all("[data-n]", svg).map((g) => [g.dataset.n, this.node(g)]));
    this.lines = all("[data-e]", svg).map((g) => ({
      g, frame: g.dataset.p, edges: g.dataset.e.split(" ").map((edge) => edge.split("-")),
      paths: all("path", g).map((path) => [path, path.getAttribute("d")]),
    }));
    this.frames = [...this.nodes.values()].filter((node) => node.isFrame);
    this.build();
    this.foldFirst();
    this.zoom(Math.min(Math.max(this.fitting(), LEAST), 1));
    this.view.scrollLeft = (this.view.scrollWidth - this.view.clientWidth) / 2;
  }

  fitting() { // the scale at which all of it is in view
    const tall = parseFloat(getComputedStyle(this.view).maxHeight) - 4;
    return Math.min((this.view.clientWidth - 2) / this.width, tall / this.height);
  }

  node(g) {
    const rects = all("rect", g).map((rect) => [rect, rect.getBBox()]);
    const texts = all("text", g), isFrame = "open" in g.dataset;
    const box = rects.at(-1)[1];
    const wide = Math.max(...texts.map((text) => text.getComputedTextLength())) + 34;
    return {g, rects, texts, isFrame, box, wide: Math.min(wide, box.width), name: g.dataset.name,
      tall: 15 * texts.length + 8, title: texts[0].textContent, number: g.dataset.n,
      parent: g.dataset.p};
  }

  around(number) { // the frames around a node, the innermost first
    const found = [];
    for (let up = this.nodes.get(number)?.parent; up; up = this.nodes.get(up).parent) found.push(up);
    return found;
  }

  foldFirst() { // the deepest frames, until few boxes are left that fit in a legible size
    const depth = (node) => this.around(node.number).length;
    for (let level = Math.max(0, ...this.frames.map(depth)) + 1; level >= 0; level--) {
      this.folded = new Set(this.frames.filter((f) => depth(f) >= level).map((f) => f.number));
      const isShown = (node) => !this.around(node.number).some((up) => this.folded.has(up));
      if (level && [...this.nodes.values()].filter(isShown).length > FEW) continue;
      this.draw();
      if (this.fitting() >= LEAST) return;
    }
  }

  build() {
    const view = this.view = this.svg.parentElement;
    view.classList.add("graph");
    view.tabIndex = 0;
    this.svg.setAttribute("role", "group");
    const zoom = (factor) => () => this.zoom(this.scale * factor);
    const fold = (isFolded) => () => {
      this.folded = new Set(isFolded ? this.frames.map((frame) => frame.number) : []);
      this.draw();
    };
    const tools = searchField("find a module", (wanted) => this.search(wanted));
    const others = [["+", "zoom in", zoom(1.25)], ["\u2212", "zoom out", zoom(0.8)],
      ["Fit", "fit all of it", () => this.zoom(this.fitting())],
      ["Unfold all", "unfold all modules", fold(false)], ["Fold all", "fold all modules", fold(true)]];
    for (const [words, label, action] of others) {
      const made = button(words, action);
      made.ariaLabel = label;
      tools.append(made);
    }
    view.before(tools);
    for (const {g, number} of this.frames) {
      g.tabIndex = 0;
      g.setAttribute("role", "button");
      const toggle = () => {
        if (!this.folded.delete(number)) this.folded.add(number);
        this.draw();
      };
      g.onclick = () => this.dragged || toggle();
      g.onkeydown = (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      };
    }
    this.svg.onpointerover = (event) => this.light(event.target);
    this.svg.onpointerleave = () => this.light(null);
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(this.scale * (event.deltaY < 0 ? 1.15 : 0.87));
    }, {passive: false});
    view.onpointerdown = (event) => {
      this.dragged = false;
      if (event.pointerType === "mouse") this.from = [event.clientX, event.clientY];
    };
    view.onpointermove = (event) => {
      if (!this.from || !event.buttons) return;
      const moved = [event.clientX - this.from[0], event.clientY - this.from[1]];
      if (!this.dragged && Math.hypot(...moved) < 4) return;
      this.dragged = true;
      view.scrollLeft -= moved[0];
      view.scrollTop -= moved[1];
      this.from = [event.clientX, event.clientY];
    };
  }

  zoom(scale) {
    this.scale = Math.min(Math.max(scale, 0.05), 4);
    this.svg.setAttribute("width", this.width * this.scale);
    this.svg.setAttribute("height", this.height * this.scale);
  }

  draw() {
    const hides = (frame) => this.folded.has(frame);
    const taken = {x: [], y: []};
    for (const node of this.nodes.values()) {
      const {x, y, width, height} = node.box;
      node.isShown = !this.around(node.number).some(hides);
      node.g.classList.toggle("hidden", !node.isShown);
      if (!node.isShown) continue;
      const half = (node.isFrame ? node.wide : width) / 2, middle = x + width / 2;
      taken.x.push([x, x + 1], [middle - half, middle + half], [x + width - 1, x + width]);
      taken.y.push([y, y + (node.isFrame ? node.tall : height)], [y + height - 1, y + height]);
    }
    for (const line of this.lines) {
      const frames = line.frame ? [line.frame, ...this.around(line.frame)] : [];
      line.isShown = !frames.some(hides);
      line.g.classList.toggle("hidden", !line.isShown);
      if (!line.isShown) continue;
      for (const [path, d] of line.paths) {
        if (path.matches(".e")) continue;
        for (const [, x] of d.matchAll(/([-\d.]+) [-\d.]+(?=[VCM]|$)/g)) taken.x.push([x - 4, +x + 4]);
      }
    }
    const x = mapping(taken.x, GAP.x), y = mapping(taken.y, GAP.y);
    for (const node of this.nodes.values()) if (node.isShown) this.place(node, x, y);
    for (const line of this.lines) if (line.isShown) this.bend(line, x, y);
    const right = x(this.size[0] + 2 * this.margin), bottom = y(this.size[1] + 2 * this.margin);
    this.width = right - 2 * this.margin;
    this.height = bottom - 2 * this.margin;
    const box = [this.margin, this.margin, this.width, this.height];
    this.svg.setAttribute("viewBox", box.join(" "));
    this.zoom(this.scale);
  }

  place(node, x, y) {
    for (const [rect, box] of node.rects) {
      rect.setAttribute("x", x(node.box.x) + box.x - node.box.x);
      rect.setAttribute("y", y(node.box.y) + box.y - node.box.y);
      rect.setAttribute("width", x(node.box.x + node.box.width) - x(node.box.x));
      rect.setAttribute("height", y(node.box.y + node.box.height) - y(node.box.y));
    }
    const isFolded = this.folded.has(node.number), box = node.rects.at(-1)[0].getBBox();
    const [right, down] = isFolded // its name is in the middle, as that of other boxes
      ? [(box.width - node.wide) / 2 + 7, (box.height - node.tall) / 2] : [0, 0];
    const move = `translate(${box.x - node.box.x + right} ${box.y - node.box.y + down})`;
    for (const text of node.texts) text.setAttribute("transform", move);
    if (!node.isFrame) return;
    node.texts[0].textContent = `${isFolded ? "\u25b8" : "\u25be"} ${node.title}`;
    node.g.setAttribute("aria-expanded", !isFolded);
  }

  bend(line, x, y) {
    for (const [path, d] of line.paths) {
      if (path.matches(".e")) {
        const [left, top] = d.match(/[-\d.]+/g).map(Number), end = [left + 3.5, top + 6];
        path.setAttribute("transform", `translate(${x(end[0]) - end[0]} ${y(end[1]) - end[1]})`);
        continue;
      }
      path.setAttribute("d", d.replace(/([MVC])([^MVC]*)/g, (_, kind, numbers) => {
        const values = numbers.trim().split(" ").map(Number);
        return kind + values.map((v, i) => (kind === "V" || i % 2 ? y(v) : x(v)).toFixed(1)).join(" ");
      }));
    }
  }

  light(target) {
    for (const lit of all(".hot", this.svg)) lit.classList.remove("hot");
    const line = target?.closest("[data-e]"), box = target?.closest("[data-n]:not([data-open])");
    if (!line && !box) return;
    const wanted = line
      ? new Set(line.dataset.e.split(" "))
      : new Set(this.lines.flatMap(({edges}) => edges)
        .filter((edge) => edge.includes(box.dataset.n)).map((edge) => edge.join("-")));
    for (const {g, edges} of this.lines) {
      const found = edges.filter((edge) => wanted.has(edge.join("-")));
      if (!found.length) continue;
      g.classList.add("hot");
      for (const end of found.flat()) this.nodes.get(end)?.g.classList.add("hot");
    }
  }

  search(wanted) {
    const isFound = (node) => wanted && `${node.name} ${node.title}`.toLowerCase().includes(wanted);
    const found = [...this.nodes.values()].filter(isFound);
    for (const node of this.nodes.values()) node.g.classList.toggle("found", found.includes(node));
    for (const node of found.slice(0, FEW)) {
      for (const frame of this.around(node.number)) this.folded.delete(frame);
    }
    this.draw();
    if (found.length) {
      const box = found[0].g.getBoundingClientRect(), around = this.view.getBoundingClientRect();
      this.view.scrollLeft += box.left + box.width / 2 - around.left - around.width / 2;
      this.view.scrollTop += box.top - around.top - around.height / 3;
    }
    return found.length;
  }
}

for (const svg of all("svg.tfg")) new Graph(svg);

// What figures say under the pointer is shown at once, and under a finger too.
for (const title of all("svg title")) {
  if (title.parentElement.matches("section > svg, .tfg, div > svg")) continue;
  title.parentElement.dataset.tip = title.textContent;
  title.remove();
}
for (const titled of all("main [title]")) {
  titled.dataset.tip = titled.title;
  titled.removeAttribute("title");
}
const tip = element("div", {id: "tip", className: "hidden"});
document.querySelector("main").append(tip);
document.addEventListener("pointermove", (event) => {
  const words = event.target.closest?.("[data-tip]")?.dataset.tip;
  tip.classList.toggle("hidden", !words);
  if (!words) return;
  tip.textContent = words;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)}px`;
  const below = event.clientY + 18;
  const fits = below + tip.offsetHeight < innerHeight;
  tip.style.top = `${fits ? below : Math.max(event.clientY - tip.offsetHeight - 8, 0)}px`;
});
