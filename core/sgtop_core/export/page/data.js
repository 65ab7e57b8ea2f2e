// The data: JSON that says what there is, and one gzip of typed arrays that it points into.

const TYPES = { "<f8": Float64Array, "<f4": Float32Array, "<i4": Int32Array, "<u4": Uint32Array };
const MISSING = -(2 ** 31);

async function load() {
  const model = JSON.parse(document.getElementById("model").textContent);
  const packed = Uint8Array.from(atob(document.getElementById("blob").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const view = ([type, at, n]) => new TYPES[type](buffer, at, n);
  for (const row of model.rows) {
    row.t0 = view(row.t0);
    row.len = view(row.len);
    row.name = view(row.name);
    for (const k of Object.keys(row.args)) row.args[k] = view(row.args[k]);
    // Longest span so far: where spans nest, a search for what covers a moment must look back at least this far.
    let end = 0;
    row.reach = new Float64Array(row.t0.length);
    for (let i = 0; i < row.t0.length; i++) {
      end = Math.max(end, row.t0[i] + row.len[i]);
      row.reach[i] = end;
    }
  }
  for (const c of model.counters) {
    c.t = view(c.t);
    c.v = view(c.v);
  }
  return model;
}

// First index whose value is >= x (of a sorted array).
function lower(a, x) {
  let lo = 0, hi = a.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (a[mid] < x) lo = mid + 1; else hi = mid;
  }
  return lo;
}

// The innermost span of a row at time t, or -1. `slack` forgives a pointer beside a span that is too thin to hit.
function spanAt(row, t, slack) {
  let i = lower(row.t0, t + slack) - 1, near = -1, gap = slack;
  for (; i >= 0 && row.reach[i] >= t - slack; i--) {
    const end = row.t0[i] + row.len[i];
    if (row.t0[i] <= t && end >= t) return i;
    const d = row.t0[i] > t ? row.t0[i] - t : t - end;
    if (d <= gap) { near = i; gap = d; }
  }
  return near;
}

function duration(ns) {
  const a = Math.abs(ns);
  if (a < 1e3) return ns.toFixed(0) + " ns";
  if (a < 1e6) return (ns / 1e3).toFixed(a < 1e4 ? 2 : 1) + " µs";
  if (a < 1e9) return (ns / 1e6).toFixed(a < 1e7 ? 3 : 2) + " ms";
  return (ns / 1e9).toFixed(a < 1e10 ? 3 : 2) + " s";
}

// A name's colour: forward modes have their own (blue for decode, orange for prefill), all else by a hash of the name.
const MODE_COLOURS = [
  [/DECODE.*eager/, "#b45309"], [/VERIFY/, "#7c3aed"], [/DRAFT|draft/, "#a78bfa"], [/DECODE/, "#2563eb"],
  [/EXTEND|PREFILL/, "#ea8a1f"], [/MIXED/, "#c2569b"], [/^(idle|slept|paused)/, "#b8c0c8"], [/^preempted/, "#dc2626"],
  [/^wakeup|^wait/, "#f59e0b"], [/^gc /, "#be123c"], [/^run_batch$/, "#5b8fc7"], [/^sampling/, "#7fb3a4"],
];
function colour(name) {
  for (const [re, c] of MODE_COLOURS) if (re.test(name)) return c;
  let h = 2166136261;
  for (let i = 0; i < name.length; i++) h = Math.imul(h ^ name.charCodeAt(i), 16777619);
  return `hsl(${(h >>> 0) % 360} 42% 52%)`;
}
