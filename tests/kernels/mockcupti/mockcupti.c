/* A libcupti that needs no GPU: CUPTI's v1 activity entry points over a make-believe device.
 *
 * Tests drive it with the mock_* functions: which layout its records have, which clock they are in, how many come
 * without timestamps, and "launches", whose kernels run one after the other on a stream in real time. A buffer is
 * given back by a flush once its last kernel has ended, as CUPTI does; a forced flush gives back what still runs.
 *
 * Each record carries a serial number (gridId of a kernel, bytes of a copy) and a checksum over its timestamps
 * (correlationId), so that a reader that saw a half-written record, or one twice, cannot miss it.
 * What a late tracer must never do is counted in `forbidden`.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define STREAMS 64
#define PENDING 262144
#define BUFFERS 512

typedef void (*request_fn)(uint8_t **, size_t *, size_t *);
typedef void (*complete_fn)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef struct { uint8_t *at; uint64_t start, end; } pending_t;
typedef struct { uint8_t *p; size_t size, valid; uint64_t last_end; uint32_t first, n; } buffer_t;

enum { CALLS, FORBIDDEN, EMITTED, NO_BUFFER, DIRTY, REGISTERED, FLUSHES, FORCED, RETURNED, REQUESTED, OVERFLOW, N_STATS };
static _Atomic uint64_t stats[N_STATS];
static void hit(uint32_t i) { atomic_fetch_add(&stats[i], 1); }
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t version = 130001, stride[64] = {[10] = 216, [1] = 96, [2] = 88};
static int tsc_clock, zeroed_attr, zero_every, enable_error;
static uint8_t enabled[64];
static request_fn request_cb;
static complete_fn complete_cb;
static uint64_t stream_end[STREAMS], serial[64];
static buffer_t full[BUFFERS], cur;
static uint32_t n_full;
static pending_t *pending; /* ring of records whose kernels have not ended when they were launched */
static uint64_t pend_head;

static uint64_t ns(clockid_t c) {
  struct timespec t;
  clock_gettime(c, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
/* The device's time line is CLOCK_REALTIME; a TSC-like clock counts 2.4 ticks a nanosecond from boot. */
static uint64_t offset(void) {
  static uint64_t at;
  if (!at) at = ns(CLOCK_REALTIME) - ns(CLOCK_MONOTONIC_RAW);
  return at;
}
static uint64_t device(void) { return ns(CLOCK_MONOTONIC_RAW) + offset(); }
static uint64_t ticks(uint64_t dev) {
  if (!tsc_clock) return dev;
  return (dev - offset()) * 12 / 5;
}
static uint32_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b << 1) ^ 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  return (uint32_t)(x >> 32);
}
static void put(uint8_t *r, size_t at, const void *v, size_t n) { memcpy(r + at, v, n); }

static const char *const names[] = {
    "_ZN7cutlass7Kernel2I67cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x4_tn_align8EEvNT_6ParamsE",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
    "fused_moe_kernel",
    "_ZN10flashinfer4norm13RMSNormKernelILj8E13__nv_bfloat16EEvPT0_S4_S4_jjjff",
    "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
    "_ZN5flash24flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsILi128ELi64ELi128ELi4EEEEvNS_16Flash_fwd_paramsE",
};
API const char *mock_name(uint32_t i) { return names[i % (sizeof names / sizeof *names)]; }

static int new_buffer(void) {
  if (!request_cb) return 0;
  uint8_t *p = NULL;
  size_t size = 0, max = 0;
  hit(REQUESTED);
  request_cb(&p, &size, &max);
  if (!p) {
    hit(NO_BUFFER);
    return 0;
  }
  if (zeroed_attr) {
    for (size_t i = 0; i < size; i++)
      if (p[i]) {
        hit(DIRTY);
        break;
      }
  } else {
    memset(p, 0, size);
  }
  cur = (buffer_t){.p = p, .size = size, .first = (uint32_t)pend_head};
  return 1;
}

static void emit(uint32_t kind, uint32_t stream, uint64_t name, uint64_t start, uint64_t end, uint32_t graph) {
  if (!enabled[kind]) return;
  uint32_t n = stride[kind];
  if (cur.p && cur.valid + n > cur.size) {
    if (n_full == BUFFERS) {
      hit(OVERFLOW);
      return;
    }
    full[n_full++] = cur;
    cur.p = NULL;
  }
  if (!cur.p && !new_buffer()) return;
  uint8_t *r = cur.p + cur.valid;
  uint32_t device_id = 0, context = 1;
  uint64_t s = ++serial[kind], node = graph ? s : 0;
  put(r, 0, &kind, 4);
  if (kind == 10) {
    put(r, 40, &device_id, 4), put(r, 44, &context, 4), put(r, 48, &stream, 4);
    put(r, 96, &s, 8), put(r, 104, &name, 8), put(r, 144, &node, 8), put(r, 156, &graph, 4);
  } else {
    put(r, 8, &s, 8), put(r, 32, &device_id, 4), put(r, 36, &context, 4), put(r, 40, &stream, 4);
    if (kind == 1) r[4] = 1; /* host to device */
    put(r, 64, &node, 8), put(r, 72, &graph, 4);
  }
  pending[pend_head % PENDING] = (pending_t){r, start, end};
  pend_head++;
  cur.n++;
  cur.valid += n;
  if (end > cur.last_end) cur.last_end = end;
  hit(EMITTED);
}

static void give_back(buffer_t *b, uint64_t now) {
  for (uint32_t i = 0; i < b->n; i++) {
    pending_t *p = &pending[(b->first + i) % PENDING];
    uint64_t start = ticks(p->start), end = p->end <= now ? ticks(p->end) : 0;
    static uint64_t n;
    if (zero_every && ++n % (uint64_t)zero_every == 0) start = end = 0;
    uint32_t kind, check = mix(start, end);
    memcpy(&kind, p->at, 4);
    put(p->at, 16, &start, 8), put(p->at, 24, &end, 8);
    put(p->at, kind == 10 ? 92 : 44, &check, 4);
  }
  hit(RETURNED);
  if (complete_cb) complete_cb(NULL, 0, b->p, b->size, b->valid);
  b->p = NULL;
}

/* ---- CUPTI -------------------------------------------------------------------------------------------------------- */

API int cuptiGetVersion(uint32_t *v) {
  hit(CALLS);
  *v = version;
  return 0;
}
API int cuptiGetTimestamp(uint64_t *t) {
  hit(CALLS);
  *t = ticks(device());
  return 0;
}
API int cuptiActivityRegisterCallbacks(request_fn request, complete_fn complete) {
  pthread_mutex_lock(&lock);
  hit(CALLS), hit(REGISTERED);
  request_cb = request, complete_cb = complete;
  pthread_mutex_unlock(&lock);
  return 0;
}
API int cuptiActivityEnable(uint32_t kind) {
  hit(CALLS);
  if (kind != 1 && kind != 2 && kind != 10) hit(FORBIDDEN);
  if (enable_error) return enable_error;
  pthread_mutex_lock(&lock);
  enabled[kind % 64] = 1;
  pthread_mutex_unlock(&lock);
  return 0;
}
API int cuptiActivityDisable(uint32_t kind) {
  hit(CALLS);
  pthread_mutex_lock(&lock);
  enabled[kind % 64] = 0;
  pthread_mutex_unlock(&lock);
  return 0;
}
API int cuptiActivityFlushAll(uint32_t flag) {
  hit(CALLS), hit(FLUSHES);
  if (flag) hit(FORCED);
  pthread_mutex_lock(&lock);
  if (flag && (enabled[1] || enabled[2] || enabled[10])) hit(FORBIDDEN); /* it would eat running kernels */
  uint64_t now = device();
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n_full; i++)
    if (flag || full[i].last_end <= now) give_back(&full[i], now);
    else full[kept++] = full[i];
  n_full = kept;
  if (cur.p && (flag || (cur.n && cur.last_end <= now))) give_back(&cur, now);
  pthread_mutex_unlock(&lock);
  return 0;
}
API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
  hit(CALLS);
  uint8_t *next = buffer;
  if (*record) {
    uint32_t kind;
    memcpy(&kind, *record, 4);
    next = *record + stride[kind % 64];
  }
  if (next + 8 > buffer + valid) return 12;
  *record = next;
  return 0;
}
API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
  (void)context, (void)stream;
  hit(CALLS);
  *dropped = 0;
  return 0;
}
API int cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value) {
  hit(CALLS);
  if (attribute == 5 && *size == 1) zeroed_attr = *(uint8_t *)value;
  else hit(FORBIDDEN);
  return 0;
}
API int cuptiActivityGetAttribute(uint32_t attribute, size_t *size, void *value) {
  hit(CALLS);
  if (attribute == 5 && *size == 1) *(uint8_t *)value = (uint8_t)zeroed_attr;
  return 0;
}
API int cuptiSubscribe(void *s, void *f, void *u) { (void)s, (void)f, (void)u; hit(FORBIDDEN); return 39; }
API int cuptiFinalize(void) { hit(FORBIDDEN); return 0; }
API int cuptiActivityRegisterTimestampCallback(void *f) { (void)f; hit(FORBIDDEN); return 0; }

/* ---- what tests drive --------------------------------------------------------------------------------------------- */

API void mock_configure(uint32_t v, uint32_t kernel, uint32_t memcpy_, uint32_t memset_) {
  version = v, stride[10] = kernel, stride[1] = memcpy_, stride[2] = memset_;
}
API void mock_clock(int tsc) { tsc_clock = tsc; }
API void mock_zero_every(int n) { zero_every = n; }
API void mock_enable_error(int code) { enable_error = code; }
API uint64_t mock_stat(uint32_t i) { return i < N_STATS ? stats[i] : 0; }
API uint64_t mock_serial(uint32_t kind) { return serial[kind % 64]; }
API int mock_enabled(uint32_t kind) { return enabled[kind % 64]; }
API int mock_zeroed_attribute(void) { return zeroed_attr; }
API uint64_t mock_device_ns(void) { return device(); }

/* Launch `n` kernels of `duration` ns, `gap` ns apart, on a stream; graph != 0: as nodes of that graph. The first
 * starts now, or when the stream is free. `name` 0: names by turns. Returns when the last ends (device ns). */
API uint64_t mock_launch(uint32_t kind, uint32_t stream, uint64_t name, uint32_t n, uint64_t duration, uint64_t gap,
                         uint32_t graph) {
  pthread_mutex_lock(&lock);
  if (!pending) pending = calloc(PENDING, sizeof *pending);
  uint64_t *end = &stream_end[stream % STREAMS], t = device();
  if (*end > t) t = *end;
  for (uint32_t i = 0; i < n; i++) {
    t += gap;
    emit(kind, stream, name ? name : (uint64_t)(uintptr_t)mock_name(i), t, t + duration, graph);
    t += duration;
  }
  *end = t;
  pthread_mutex_unlock(&lock);
  return t;
}

static _Atomic int load_on;
static uint32_t load_kernels, load_copies;
static uint64_t load_step_ns;
static pthread_t load_thread;
static void *load(void *unused) {
  uint64_t next = ns(CLOCK_MONOTONIC);
  while (load_on) {
    mock_launch(1, 7, 0, load_copies, 500, 200, 0);
    mock_launch(10, 7, 0, load_kernels, load_step_ns / (2 * load_kernels + 1), 100, 1);
    next += load_step_ns;
    uint64_t now = ns(CLOCK_MONOTONIC);
    if (next > now) usleep((useconds_t)((next - now) / 1000));
    else next = now;
  }
  return unused;
}
/* Endless load from a thread of its own: `kernels` graph kernels and `copies` copies a step of `step_ns`. */
API void mock_load(uint32_t kernels, uint32_t copies, uint64_t step_ns) {
  if (load_on) {
    load_on = 0;
    pthread_join(load_thread, NULL);
  }
  if (!kernels) return;
  load_kernels = kernels, load_copies = copies, load_step_ns = step_ns, load_on = 1;
  pthread_create(&load_thread, NULL, load, NULL);
}
