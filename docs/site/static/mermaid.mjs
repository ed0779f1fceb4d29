// mermaid.min.js is a script, and pages import a module
await new Promise((done) => {
  const src = new URL("mermaid.min.js", import.meta.url).href;
  document.head.append(Object.assign(document.createElement("script"), {src, onload: done}));
});
export default globalThis.mermaid;
