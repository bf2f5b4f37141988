// Draws the state of LiveView as tables. Texts of the job are set as text, never as HTML.

const STYLE = `
.sb-live { font: 13px/1.5 system-ui, sans-serif; color: inherit; }
.sb-live table { border-collapse: collapse; margin: 4px 0 12px; }
.sb-live th, .sb-live td { padding: 2px 10px; text-align: left; border-bottom: 1px solid #8884; }
.sb-live td.n { text-align: right; font-variant-numeric: tabular-nums; }
.sb-live .bar { display: inline-block; width: 80px; height: 8px; background: #8883; border-radius: 4px; }
.sb-live .bar > i { display: block; height: 100%; border-radius: 4px; background: #2a7de1; }
.sb-live .bar.full > i { background: #c7372f; }
.sb-live .error { color: #c7372f; }
`;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (kind) made.className = kind;
  return made;
}

function bar(percent) {
  const width = Math.max(0, Math.min(100, percent));
  const outer = element("span", null, width >= 80 ? "bar full" : "bar");
  const inner = element("i");
  inner.style.width = `${width}%`;
  outer.title = `${Math.round(width)} % of the buffer`;
  outer.append(inner);
  return outer;
}

function table(title, columns, rows) {
  const made = element("table");
  made.append(element("caption", title));
  const head = element("tr");
  for (const column of columns) head.append(element("th", column));
  made.append(head);
  for (const cells of rows) {
    const row = element("tr");
    for (const cell of cells) {
      const place = element("td", null, typeof cell === "number" ? "n" : "");
      place.append(cell instanceof Node ? cell : typeof cell === "number" ? cell.toLocaleString() : String(cell ?? ""));
      row.append(place);
    }
    made.append(row);
  }
  return made;
}

function state(reader) {
  return reader.alive ? "reads" : "away";
}

function draw(root, view) {
  root.replaceChildren();
  root.append(element("strong", view.pe ?? ""));
  if (view.error) root.append(element("div", `The agent does not answer: ${view.error}`, "error"));
  for (const one of view.exports ?? []) {
    const share = one.limit ? (100 * one.held) / one.limit : 0;
    const rate = `export ${one.port}: ${one.rowsPerSecond.toLocaleString()} rows/s, ${one.published.toLocaleString()} published`;
    const caption = one.ended ? `${rate}, ended` : one.waitingFor.length ? `${rate}, waits for ${one.waitingFor.join(", ")}` : rate;
    const rows = one.readers.map((r) => [r.import, state(r), r.policy, r.lagRows, r.lagSeconds, bar(r.congestion), r.dropped, r.lost]);
    root.append(table(caption, ["importer", "state", "policy", "lag rows", "lag s", "buffer", "dropped", "lost"], rows));
    root.append(bar(share));
  }
  if ((view.imports ?? []).length) {
    const rows = view.imports.map((r) => [r.import, r.ended ? "ended" : state(r), r.dropped, r.lost, r.refused]);
    root.append(table("imports", ["import", "state", "dropped", "lost", "refused"], rows));
  }
  for (const [location, reason] of Object.entries(view.away ?? {})) {
    root.append(element("div", `${location} is away: ${reason}`, "error"));
  }
}

function render({ model, el }) {
  const style = element("style", STYLE);
  const root = element("div", null, "sb-live");
  el.append(style, root);
  const update = () => draw(root, model.get("state") ?? {});
  model.on("change:state", update);
  update();
  return () => model.off("change:state", update);
}

export default { render };
