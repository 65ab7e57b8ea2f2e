// The areas: uPlot instances that share one time axis. Rows of spans are drawn by a hook of uPlot's own draw cycle;
// axes, cursor, selection, scales and the curves are uPlot's.

const ROW = 20, PAD = 3, LEFT = 172, RIGHT = 34, NS = 1e9;

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Draw the visible spans of a row. Spans thinner than a pixel are added up: a pixel gets the colour of what fills it
// most, and is as strong as it is full, so that a view of everything shows how busy a row was and costs as many
// rectangles as the screen has pixels, not as the recording has events.
function drawRow(u, ctx, row, top, height, state) {
  const { min, max } = u.scales.x;
  const lo = min * NS, hi = max * NS;
  const left = u.bbox.left, width = u.bbox.width, k = width / (hi - lo);
  const hits = state.hits, letter = 6.4 * devicePixelRatio;
  const thin = { px: -1, sum: 0, most: 0, name: 0, hit: 0 };
  const flush = () => {
    if (thin.px < 0) return;
    ctx.fillStyle = state.colours[thin.name];
    ctx.globalAlpha = thin.hit ? 1 : (hits ? 0.13 : 1) * (0.3 + 0.7 * Math.min(thin.sum, 1));
    ctx.fillRect(left + thin.px, top, 1, height);
    thin.px = -1;
  };
  const stop = lower(row.t0, hi);
  for (let i = lower(row.reach, lo); i < stop; i++) {
    const x0 = (row.t0[i] - lo) * k;
    const x1 = x0 + row.len[i] * k;
    if (x1 < 0) continue;
    const name = row.name[i];
    const hit = hits ? hits[name] : 0;
    const a = Math.max(0, x0), wide = Math.min(x1, width) - a;
    if (wide < 1) {
      const px = Math.floor((x0 + x1) / 2);
      if (px !== thin.px) {
        flush();
        thin.px = px;
        thin.sum = thin.most = thin.hit = 0;
      }
      thin.sum += wide;
      // A match is never hidden by its neighbours.
      if (hit > thin.hit || (wide >= thin.most && hit === thin.hit)) {
        thin.most = wide;
        thin.name = name;
        thin.hit = hit;
      }
      continue;
    }
    flush();
    ctx.fillStyle = state.colours[name];
    ctx.globalAlpha = !hits || hit ? 1 : 0.13;
    ctx.fillRect(left + a, top, wide - (wide > 4 ? 1 : 0), height);
    if (wide > 5 * letter && (!hits || hit)) {
      const room = Math.floor(wide / letter) - 1, text = state.names[name];
      ctx.fillStyle = "#fff";
      ctx.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, left + a + 3 * devicePixelRatio, top + height / 2);
    }
  }
  flush();
  ctx.globalAlpha = 1;
  const chosen = state.chosen;
  if (chosen && chosen.row === row) {
    const x0 = left + Math.max(0, (row.t0[chosen.index] - lo) * k);
    const x1 = left + Math.min(width, (row.t0[chosen.index] + row.len[chosen.index] - lo) * k);
    if (x1 >= left && x0 <= left + width) {
      ctx.strokeStyle = css("--fg");
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.strokeRect(x0, top, Math.max(x1 - x0, 2), height);
    }
  }
}

function timeAxis(show) {
  return {
    show, stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, size: show ? 30 : 0, space: 90,
    values: (u, splits) => {
      const step = splits.length > 1 ? splits[1] - splits[0] : 1;
      const [unit, scale] = step >= 0.1 ? ["s", 1] : ["ms", 1e3];
      const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step * scale) + 1e-9)));
      return splits.map((v) => (v * scale).toFixed(digits) + " " + unit);
    },
  };
}

function common(state, area, title, height, marks) {
  return {
    width: state.width(), height, legend: { show: false }, padding: [22, RIGHT, 0, 0],
    cursor: {
      sync: { key: "sgtop", setSeries: false, scales: ["x", null] }, y: false, points: { show: false },
      drag: { x: true, y: false, setScale: false, dist: 4 },
    },
    scales: { x: { time: false, min: 0, max: state.span } },
    hooks: {
      ready: [(u) => {
        const cap = document.createElement("div");
        cap.className = "cap";
        cap.textContent = title;
        u.root.parentNode.appendChild(cap);
      }],
      draw: [(u) => drawMarks(u, state, marks)],
    },
    area,
  };
}

function drawMarks(u, state, show) {
  if (!show) return;
  const { ctx } = u, { min, max } = u.scales.x;
  ctx.save();
  for (const m of state.model.marks) {
    const t = m.t / NS;
    if (t < min || t > max) continue;
    const x = u.valToPos(t, "x", true);
    ctx.fillStyle = m.severity === "critical" ? "#dc2626" : m.severity === "warning" ? "#f59e0b" : css("--dim");
    ctx.globalAlpha = 0.5;
    ctx.fillRect(x, u.bbox.top, devicePixelRatio, u.bbox.height);
    ctx.globalAlpha = 1;
    ctx.beginPath();
    ctx.moveTo(x - 5 * devicePixelRatio, u.bbox.top);
    ctx.lineTo(x + 5 * devicePixelRatio, u.bbox.top);
    ctx.lineTo(x, u.bbox.top + 8 * devicePixelRatio);
    ctx.fill();
  }
  ctx.restore();
}

// An area of rows of spans.
function spanArea(state, area, title, host) {
  const rows = state.model.rows.filter((r) => r.area === area);
  if (!rows.length) { host.remove(); return null; }
  const height = 24 + rows.length * ROW + 34;
  const opts = common(state, area, title, height, true);
  opts.scales.y = { range: [0, rows.length] };
  opts.series = [{}, { scale: "y", show: true, paths: () => null, points: { show: false } }];
  opts.axes = [timeAxis(true), {
    scale: "y", size: LEFT, stroke: css("--fg"), grid: { show: false }, ticks: { show: false }, gap: 8, font: "12px system-ui, sans-serif",
    splits: () => rows.map((_, i) => rows.length - i - 0.5),
    values: () => rows.map((r) => `${r.group} ${r.title}`),
  }];
  opts.hooks.draw.unshift((u) => {
    const { ctx } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    const step = u.bbox.height / rows.length, pad = PAD * devicePixelRatio;
    rows.forEach((row, i) => drawRow(u, ctx, row, u.bbox.top + i * step + pad / 2, step - pad, state));
    ctx.restore();
  });
  const u = new uPlot(opts, [[0, state.span], [null, null]], host);
  u.rows = rows;
  return u;
}

// An area of curves: one uPlot a unit, as curves of one unit share an axis.
function counterAreas(state, host) {
  const units = new Map();
  for (const c of state.model.counters) {
    if (!units.has(c.unit)) units.set(c.unit, []);
    units.get(c.unit).push(c);
  }
  const out = [];
  for (const [unit, list] of units) {
    const box = document.createElement("div");
    box.style.position = "relative";
    host.appendChild(box);
    const data = uPlot.join(list.map((c) => [Array.from(c.t, (t) => t / NS), Array.from(c.v, (v) => (Number.isNaN(v) ? null : v))]));
    const opts = common(state, "counters", `${[...new Set(list.map((c) => c.name.replace(/_/g, " ")))].join(", ")} (${unit})`, 112, false);
    opts.scales.y = { range: (u, lo, hi) => [Math.min(0, lo ?? 0), (hi > 0 ? hi : 1) * 1.1] };
    opts.series = [{}, ...list.map((c) => ({
      label: `${c.group} ${c.name}`, stroke: colour(c.group + c.name), width: 1.5, spanGaps: true, points: { show: false },
    }))];
    opts.axes = [timeAxis(true), {
      scale: "y", size: LEFT, stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false },
      gap: 8, values: (u, v) => v.map((x) => (Math.abs(x) >= 1e4 ? x.toExponential(0) : String(+x.toPrecision(3)))),
    }];
    const u = new uPlot(opts, data, box);
    u.counters = list;
    out.push(u);
  }
  if (!out.length) host.remove();
  return out;
}
