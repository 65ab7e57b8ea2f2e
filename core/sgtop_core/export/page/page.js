// The page: zoom, pan, hover, click, search, keys.

async function main() {
  const model = await load();
  const state = {
    model, names: model.names, colours: model.names.map(colour), hits: null, chosen: null, matches: [], at: -1,
    span: Math.max(model.span_ns / NS, 1e-6), width: () => document.querySelector("main").clientWidth,
  };
  const $ = (id) => document.getElementById(id);
  $("title").textContent = model.title;
  const plots = [
    spanArea(state, "gpu", "Forwards and kernels", $("gpu")),
    spanArea(state, "cpu", "CPU: stages, steps, who ran", $("cpu")),
    ...counterAreas(state, $("counters")),
  ].filter(Boolean);

  if (!plots.length) document.querySelector("main").textContent = "There is nothing to draw in this part of the recording.";

  let view = [0, state.span], pending = false;
  function show(lo, hi) {
    const min = Math.min(50e-9 * 20, state.span);
    let w = Math.min(Math.max(hi - lo, min), state.span);
    lo = Math.min(Math.max(lo + (hi - lo - w) / 2, 0), state.span - w);
    view = [lo, lo + w];
    if (!pending) { pending = true; requestAnimationFrame(paint); }
  }
  function paint() {
    pending = false;
    for (const u of plots) u.setScale("x", { min: view[0], max: view[1] });
    $("range").textContent = `${duration(view[0] * NS)} – ${duration(view[1] * NS)}  (${duration((view[1] - view[0]) * NS)})`;
  }
  function redraw() { for (const u of plots) if (u.rows) u.redraw(false, false); }
  const zoom = (factor, about) => show(about - (about - view[0]) * factor, about + (view[1] - about) * factor);
  const pan = (by) => show(view[0] + by, view[1] + by);

  // The span under the pointer: {row, index}, or null.
  function under(u, x, y) {
    if (!u.rows) return null;
    const row = u.rows[Math.floor(y / (u.over.clientHeight / u.rows.length))];
    if (!row) return null;
    const index = spanAt(row, u.posToVal(x, "x") * NS, (3 / u.over.clientWidth) * (view[1] - view[0]) * NS);
    return index < 0 ? null : { row, index };
  }
  function markAt(u, x) {
    const t = u.posToVal(x, "x") * NS, slack = (6 / u.over.clientWidth) * (view[1] - view[0]) * NS;
    return model.marks.find((m) => Math.abs(m.t - t) < slack);
  }
  function facts({ row, index }) {
    const out = [["row", `${row.group} ${row.title}`], ["start", duration(row.t0[index])], ["length", duration(row.len[index])]];
    for (const [k, v] of Object.entries(row.args)) if (v[index] !== MISSING) out.push([k.replace(/_/g, " "), k === "graph" ? (v[index] ? "replayed" : "eager") : String(v[index])]);
    if (model.start_unix_ms !== null) out.push(["clock", new Date(model.start_unix_ms + row.t0[index] / 1e6).toISOString()]);
    return out;
  }
  function choose(found) {
    state.chosen = found;
    $("details").hidden = !found;
    if (found) {
      const what = $("what");
      what.replaceChildren();
      const h = document.createElement("h2");
      h.textContent = state.names[found.row.name[found.index]];
      const dl = document.createElement("dl");
      for (const [k, v] of facts(found)) {
        const dt = document.createElement("dt"), dd = document.createElement("dd");
        dt.textContent = k;
        dd.textContent = v;
        dl.append(dt, dd);
      }
      what.append(h, dl);
    }
    redraw();
  }
  function tip(e, lines) {
    const t = $("tip");
    t.hidden = !lines;
    if (!lines) return;
    t.replaceChildren();
    lines.forEach((line, i) => {
      const d = document.createElement(i ? "span" : "b");
      d.textContent = line;
      t.append(d, document.createElement("br"));
    });
    const w = t.offsetWidth, h = t.offsetHeight;
    t.style.left = Math.min(e.clientX + 14, innerWidth - w - 8) + "px";
    t.style.top = (e.clientY + 18 + h > innerHeight ? e.clientY - h - 10 : e.clientY + 18) + "px";
  }
  function hover(u, e, x, y) {
    // A mark's flag stands at the top edge and comes before the spans under it; elsewhere its line comes after them.
    const mark = u.rows && markAt(u, x);
    const found = mark && y < 9 ? null : under(u, x, y);
    if (found) return tip(e, [state.names[found.row.name[found.index]], ...facts(found).slice(0, 4).map(([k, v]) => `${k} ${v}`)]);
    const t = u.posToVal(x, "x") * NS;
    if (mark) return tip(e, [mark.name, mark.text, duration(mark.t)]);
    if (u.counters) {
      return tip(e, [duration(t), ...u.counters.map((c) => {
        const i = lower(c.t, t) - 1;
        return i < 0 || Number.isNaN(c.v[i]) ? null : `${c.group} ${c.name} ${+c.v[i].toPrecision(4)} ${c.unit}`;
      }).filter(Boolean)]);
    }
    tip(e, null);
  }

  for (const u of plots) {
    const over = u.over;
    let held = null;
    const local = (e) => { const r = over.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
    over.addEventListener("wheel", (e) => {
      e.preventDefault();
      const [x] = local(e);
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan((e.deltaX / over.clientWidth) * (view[1] - view[0]));
      else zoom(Math.exp(e.deltaY * 0.002), u.posToVal(x, "x"));
    }, { passive: false });
    over.addEventListener("mousedown", (e) => {
      if (e.button !== 0) return;
      held = { x: e.clientX, y: e.clientY, view: [...view], select: e.shiftKey, moved: false };
      if (!e.shiftKey) { e.stopImmediatePropagation(); e.preventDefault(); }
    }, true);
    addEventListener("mousemove", (e) => {
      if (!held) return;
      if (Math.abs(e.clientX - held.x) + Math.abs(e.clientY - held.y) > 3) held.moved = true;
      if (held.select || !held.moved) return;
      over.classList.add("panning");
      tip(e, null);
      const by = ((held.x - e.clientX) / over.clientWidth) * (held.view[1] - held.view[0]);
      show(held.view[0] + by, held.view[1] + by);
    });
    addEventListener("mouseup", (e) => {
      if (!held) return;
      const was = held;
      held = null;
      over.classList.remove("panning");
      if (was.select && u.select.width > 3) {
        const a = u.posToVal(u.select.left, "x"), b = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        show(a, b);
      } else if (!was.moved) choose(under(u, ...local(e)));
    });
    over.addEventListener("mousemove", (e) => { if (!held) hover(u, e, ...local(e)); });
    over.addEventListener("mouseleave", (e) => tip(e, null));
    over.addEventListener("dblclick", (e) => { e.stopImmediatePropagation(); show(0, state.span); }, true);
  }

  function search(text) {
    const q = text.trim().toLowerCase();
    state.matches = [];
    state.at = -1;
    state.hits = null;
    if (q) {
      state.hits = state.names.map((n) => (n.toLowerCase().includes(q) ? 1 : 0));
      for (const row of model.rows) for (let i = 0; i < row.t0.length; i++) if (state.hits[row.name[i]]) state.matches.push({ row, index: i });
      state.matches.sort((a, b) => a.row.t0[a.index] - b.row.t0[b.index]);
    }
    count();
    redraw();
  }
  function count() {
    const n = state.matches.length;
    $("hits").textContent = state.hits === null ? "" : n ? `${state.at < 0 ? "" : (state.at + 1).toLocaleString("en") + " / "}${n.toLocaleString("en")}` : "none";
  }
  function go(by) {
    const n = state.matches.length;
    if (!n) return;
    state.at = state.at < 0 ? (by > 0 ? 0 : n - 1) : (state.at + by + n) % n;
    const m = state.matches[state.at], t = m.row.t0[m.index] / NS, len = m.row.len[m.index] / NS;
    // Keep the zoom where it already shows the span well; else show it with its neighbourhood.
    const w = Math.min(Math.max(view[1] - view[0], len * 1.5), Math.max(len * 40, 20e-6));
    show(t + len / 2 - w / 2, t + len / 2 + w / 2);
    count();
    choose(m);
  }
  $("query").addEventListener("input", (e) => search(e.target.value));
  $("search").addEventListener("submit", (e) => { e.preventDefault(); go(1); });
  $("query").addEventListener("keydown", (e) => {
    if (e.key === "Enter" && e.shiftKey) { e.preventDefault(); go(-1); }
    if (e.key === "Escape") { e.target.value = ""; search(""); e.target.blur(); e.stopPropagation(); }
  });
  $("next").addEventListener("click", () => go(1));
  $("prev").addEventListener("click", () => go(-1));
  $("reset").addEventListener("click", () => show(0, state.span));
  $("close").addEventListener("click", () => choose(null));
  const middle = () => (view[0] + view[1]) / 2, width = () => view[1] - view[0];
  const keys = {
    a: () => pan(-width() / 4), d: () => pan(width() / 4), w: () => zoom(0.6, middle()), s: () => zoom(1 / 0.6, middle()),
    ArrowLeft: () => pan(-width() / 4), ArrowRight: () => pan(width() / 4), ArrowUp: () => zoom(0.6, middle()), ArrowDown: () => zoom(1 / 0.6, middle()),
    0: () => show(0, state.span), Escape: () => choose(null), "/": () => $("query").focus(), n: () => go(1), N: () => go(-1),
  };
  addEventListener("keydown", (e) => {
    if (e.target.tagName === "INPUT" || e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return;
    e.preventDefault();
    keys[e.key]();
  });
  let resizing = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => { for (const u of plots) u.setSize({ width: state.width(), height: u.height }); });
  });
  paint();
  document.body.dataset.ready = String(Math.round(performance.now()));
  // For tests and for anyone with the console open.
  window.sgtop = { state, plots, view: () => [...view], show, search, go };
}

main().catch((e) => {
  document.getElementById("title").textContent = `this page cannot be drawn here: ${e.message}`;
  document.body.dataset.failed = e.message;
});
