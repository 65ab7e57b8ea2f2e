/* sgring: the ring between CUPTI and the processes that read it.
 *
 * CUPTI asks for activity buffers on threads that launch kernels, and hands them back on threads of its own, while it
 * holds locks. A callback in Python would take the GIL there: milliseconds of waiting on the launching thread, and a
 * deadlock with any thread that holds the GIL inside a CUDA call. So both callbacks live here and never leave C.
 *
 * Buffers and their headers stand in one memfd that the caller made. Readers map it read-only and follow a seqlock per
 * slot: `version` is odd while the slot is free, lent to CUPTI or being washed, even while it holds a published buffer.
 * A reader copies and then looks at `version` again. Nobody ever releases a slot: when CUPTI needs a buffer the oldest
 * published one is taken, whoever still wanted it. That is how any number of readers, slow and dead ones included,
 * cannot starve CUPTI; a reader sees what it missed as a hole in `order`.
 *
 * The flush thread calls cuptiActivityFlushAll(0) every period, samples both clocks, washes (zeroes) slots ahead of
 * their next use, and walks new buffers once to count records and records without timestamps.
 *
 * What readers map is in layout.h. No CUDA, CUPTI or Python header is used: the three CUPTI functions arrive as
 * pointers. Nothing here is ever unloaded or freed, because CUPTI keeps the callbacks' addresses for the life of the
 * process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"

/* Bind to the oldest pthread symbols, so that a helper built on a new glibc loads into a server on an old one. */
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.2.5");
#elif defined(__aarch64__) && defined(__GLIBC__)
__asm__(".symver pthread_create,pthread_create@GLIBC_2.17");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.17");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.17");
#endif

#define SG_API __attribute__((visibility("default")))
#define SG_WASHED_AHEAD 16u
#define SG_SPILL 8u

/* ---- private state ------------------------------------------------------------------------------------------------ */

enum { FREE, LENT, FULL, WASH };

typedef int (*flush_fn)(uint32_t flag);
typedef int (*clock_fn)(uint64_t *ticks);
typedef int (*dropped_fn)(void *context, uint32_t stream, size_t *dropped);

static sg_header *g_head;
static sg_slot *g_slot;
static sg_clock *g_clock;
static uint8_t *g_data;
static uint64_t g_slot_bytes, g_bytes;
static uint32_t g_slots;
static _Atomic uint32_t g_state[SG_MAX_SLOTS];
static uint8_t *g_spill[SG_SPILL];
static _Atomic uint32_t g_spill_lent[SG_SPILL];
static _Atomic(flush_fn) g_flush;
static _Atomic(clock_fn) g_now;
static _Atomic(dropped_fn) g_dropped;
static _Atomic uint32_t g_thread, g_quit, g_flushing, g_clock_busy, g_wake;
static _Atomic uint64_t g_period_ns = 50000000ull;
static uint64_t g_walked; /* flush thread only */

static uint64_t mono(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void count(_Atomic uint64_t *c, uint64_t n) { atomic_fetch_add_explicit(c, n, memory_order_relaxed); }

static void nap(uint64_t ns) {
  struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
  nanosleep(&t, NULL);
}

/* ---- CUPTI's two callbacks (v1 signatures) ------------------------------------------------------------------------ */

/* The oldest published slot, taken for `to`; -1 if there is none. */
static int take_oldest(uint32_t to) {
  for (int attempt = 0; attempt < 64; attempt++) {
    int best = -1;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < g_slots; i++)
      if (atomic_load_explicit(&g_state[i], memory_order_acquire) == FULL && g_slot[i].order < oldest) {
        oldest = g_slot[i].order;
        best = (int)i;
      }
    if (best < 0) return -1;
    uint32_t full = FULL;
    if (atomic_compare_exchange_strong(&g_state[best], &full, to)) {
      atomic_fetch_add_explicit(&g_slot[best].version, 1, memory_order_relaxed); /* odd: readers let go */
      atomic_thread_fence(memory_order_seq_cst); /* … before the first byte changes */
      count(&g_head->recycled, 1);
      return best;
    }
  }
  return -1;
}

static uint8_t *slot_data(uint32_t i) { return g_data + (uint64_t)i * g_slot_bytes; }

static uint8_t *spill(void) {
  for (uint32_t i = 0; i < SG_SPILL; i++) {
    uint32_t no = 0;
    if (!atomic_compare_exchange_strong(&g_spill_lent[i], &no, 1)) continue;
    if (!g_spill[i]) {
      void *p = mmap(NULL, g_slot_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED) {
        atomic_store(&g_spill_lent[i], 0);
        return NULL;
      }
      g_spill[i] = p;
    } else {
      memset(g_spill[i], 0, g_slot_bytes);
    }
    return g_spill[i];
  }
  return NULL;
}

SG_API void sg_request(uint8_t **buffer, size_t *size, size_t *max_records) {
  *buffer = NULL;
  *size = 0;
  *max_records = 0;
  if (!g_head) return;
  count(&g_head->requested, 1);
  int got = -1;
  for (uint32_t i = 0; i < g_slots && got < 0; i++) {
    uint32_t state = FREE;
    if (atomic_load_explicit(&g_state[i], memory_order_relaxed) == FREE &&
        atomic_compare_exchange_strong(&g_state[i], &state, LENT))
      got = (int)i;
  }
  if (got < 0 && (got = take_oldest(LENT)) >= 0) {
    memset(slot_data((uint32_t)got), 0, g_slot_bytes);
    count(&g_head->late, 1);
  }
  if (got >= 0) {
    count(&g_head->lent, 1);
    *buffer = slot_data((uint32_t)got);
    *size = g_slot_bytes;
    return;
  }
  /* Every slot is lent. Some CUPTI versions crash when they are refused, so lend memory whose records are lost. */
  uint8_t *p = spill();
  if (!p) {
    count(&g_head->starved, 1);
    return;
  }
  count(&g_head->spilled, 1);
  *buffer = p;
  *size = g_slot_bytes;
}

SG_API void sg_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)size;
  if (!g_head || !buffer) return;
  dropped_fn dropped = atomic_load(&g_dropped);
  size_t lost = 0;
  if (dropped && dropped(context, stream, &lost) == 0 && lost) count(&g_head->dropped, lost);
  if (buffer < g_data || buffer >= g_data + (uint64_t)g_slots * g_slot_bytes) {
    for (uint32_t i = 0; i < SG_SPILL; i++)
      if (g_spill[i] == buffer) {
        count(&g_head->spilled_bytes, valid);
        atomic_store(&g_spill_lent[i], 0);
        return;
      }
    count(&g_head->foreign, 1);
    return;
  }
  uint32_t i = (uint32_t)((uint64_t)(buffer - g_data) / g_slot_bytes);
  if (buffer != slot_data(i) || atomic_load(&g_state[i]) != LENT) {
    count(&g_head->foreign, 1);
    return;
  }
  atomic_fetch_sub(&g_head->lent, 1);
  count(&g_head->completed, 1);
  if (!valid) { /* nothing was written: it is still clean */
    count(&g_head->empty, 1);
    atomic_store_explicit(&g_state[i], FREE, memory_order_release);
    return;
  }
  sg_slot *s = &g_slot[i];
  s->valid = valid < g_slot_bytes ? valid : g_slot_bytes;
  s->t_ns = mono();
  s->epoch = atomic_load(&g_head->epoch);
  s->order = atomic_fetch_add(&g_head->head, 1);
  atomic_fetch_add_explicit(&s->version, 1, memory_order_release); /* even: readers may */
  atomic_store_explicit(&g_state[i], FULL, memory_order_release);
}

/* ---- flush thread ------------------------------------------------------------------------------------------------- */

static void sample_clock(void) {
  clock_fn now = atomic_load(&g_now);
  uint32_t no = 0;
  if (!now || !atomic_compare_exchange_strong(&g_clock_busy, &no, 1)) return;
  uint64_t ticks = 0, a = mono();
  int rc = now(&ticks);
  uint64_t b = mono();
  if (rc == 0) {
    uint64_t n = atomic_load(&g_head->clock_head);
    sg_clock *c = &g_clock[n % SG_CLOCKS];
    atomic_store_explicit(&c->version, 2 * n + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    c->mono0 = a;
    c->cupti = ticks;
    c->mono1 = b;
    c->epoch = atomic_load(&g_head->epoch);
    atomic_store_explicit(&c->version, 2 * n + 2, memory_order_release);
    atomic_store_explicit(&g_head->clock_head, n + 1, memory_order_release);
  }
  atomic_store(&g_clock_busy, 0);
}

static int flush(uint32_t flag) {
  flush_fn f = atomic_load(&g_flush);
  if (!f) return -1;
  int rc = f(flag);
  count(&g_head->flushes, 1);
  if (rc) {
    count(&g_head->flush_errors, 1);
    atomic_store(&g_head->last_error, (uint64_t)(uint32_t)rc);
  }
  return rc;
}

/* Zero the oldest published slots until enough clean ones wait, so that no launching thread has to. Half of the ring
 * is never touched ahead of need: that is how long a reader may sleep. */
static void wash(void) {
  uint32_t want = g_slots / 4 < SG_WASHED_AHEAD ? g_slots / 4 : SG_WASHED_AHEAD, ready = 0;
  for (uint32_t i = 0; i < g_slots; i++) ready += atomic_load(&g_state[i]) == FREE;
  for (; ready < want; ready++) {
    int i = take_oldest(WASH);
    if (i < 0) return;
    memset(slot_data((uint32_t)i), 0, g_slot_bytes);
    atomic_store_explicit(&g_state[i], FREE, memory_order_release);
  }
}

static void walk_slot(const sg_slot *s, uint32_t i) {
  const uint8_t *b = slot_data(i);
  uint64_t n = s->valid, at = 0, records = 0, kernels = 0, untimed = 0;
  uint64_t version = atomic_load_explicit(&s->version, memory_order_acquire);
  int bad = 0;
  while (at + 32 <= n) {
    uint32_t kind;
    uint64_t t[2];
    memcpy(&kind, b + at, 4);
    uint32_t stride = kind < SG_KINDS ? g_head->strides[kind] : 0;
    if (!stride || at + stride > n) {
      bad = 1;
      break;
    }
    memcpy(t, b + at + 16, 16); /* start and end stand at 16 and 24 in all three kinds */
    records++;
    kernels += kind == 10;
    untimed += t[0] == 0 || t[1] < t[0];
    at += stride;
  }
  atomic_thread_fence(memory_order_seq_cst);
  if ((version & 1) || atomic_load(&s->version) != version) {
    count(&g_head->unwalked, 1);
    return;
  }
  count(&g_head->records, records);
  count(&g_head->kernels, kernels);
  count(&g_head->untimed, untimed);
  count(&g_head->malformed, (uint64_t)(bad || at < n));
}

/* Walk what was published since the last call, oldest first is not needed: these are only sums. */
static void walk(void) {
  uint64_t head = atomic_load(&g_head->head), seen = 0;
  for (uint32_t i = 0; i < g_slots && g_walked < head; i++) {
    if (atomic_load(&g_state[i]) != FULL) continue;
    uint64_t order = g_slot[i].order;
    if (order < g_walked || order >= head) continue;
    walk_slot(&g_slot[i], i);
    seen++;
  }
  if (head - g_walked > seen) count(&g_head->unwalked, head - g_walked - seen);
  g_walked = head;
}

static void *loop(void *unused) {
  (void)unused;
  prctl(PR_SET_NAME, "sgtop-flush");
  uint64_t next = mono();
  while (!atomic_load(&g_quit)) {
    uint32_t wake = atomic_load(&g_wake);
    uint64_t now = mono();
    if (now < next) {
      struct timespec t = {(time_t)((next - now) / 1000000000ull), (long)((next - now) % 1000000000ull)};
      syscall(SYS_futex, &g_wake, FUTEX_WAIT_PRIVATE, wake, &t, NULL, 0);
      if (atomic_load(&g_quit)) break;
      if (mono() < next && atomic_load(&g_wake) == wake) continue;
    }
    next = mono() + atomic_load(&g_period_ns);
    atomic_store(&g_flushing, 1);
    if (atomic_load(&g_head->on)) {
      sample_clock();
      flush(0);
    }
    walk();
    wash();
    atomic_store(&g_flushing, 0);
  }
  walk();
  atomic_store(&g_flushing, 0);
  atomic_store(&g_thread, 0);
  return NULL;
}

static void wake(void) {
  atomic_fetch_add(&g_wake, 1);
  syscall(SYS_futex, &g_wake, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static int wait_while(_Atomic uint32_t *flag, uint32_t timeout_ms) {
  for (uint64_t end = mono() + timeout_ms * 1000000ull; atomic_load(flag); nap(100000))
    if (mono() > end) return -ETIMEDOUT;
  return 0;
}

/* ---- control; called by the agent, one thread at a time ------------------------------------------------------------ */

SG_API uint32_t sg_abi(void) { return SG_ABI; }
SG_API const void *sg_header_at(void) { return g_head; }
SG_API uint64_t sg_bytes(void) { return g_bytes; }
SG_API uint64_t sg_size(uint32_t slots, uint64_t slot_bytes) { return SG_HEADER_BYTES + slots * slot_bytes; }

/* Map the memfd `fd` of sg_size() bytes and lay the ring out in it; every page is touched now, so that no launching
 * thread pays for it and the memory is taken as stated. Once in the life of a process.
 * 0, or -errno: EALREADY, EINVAL, or what mmap said. */
SG_API int sg_init(int fd, uint32_t slots, uint64_t slot_bytes, uint32_t cupti_version, const uint32_t *strides) {
  if (g_head) return -EALREADY;
  if (slots < 4 || slots > SG_MAX_SLOTS || slot_bytes < 4096 || slot_bytes % 4096) return -EINVAL;
  uint64_t bytes = sg_size(slots, slot_bytes);
  uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return -errno;
  memset(p, 0, bytes);
  sg_header *h = (sg_header *)p;
  h->abi = SG_ABI;
  h->header_bytes = SG_HEADER_BYTES;
  h->slots = slots;
  h->clocks = SG_CLOCKS;
  h->slot_bytes = slot_bytes;
  h->slots_at = 1024;
  h->clocks_at = 1024 + 64 * SG_MAX_SLOTS;
  h->data_at = SG_HEADER_BYTES;
  h->cupti_version = cupti_version;
  h->pid = (uint32_t)getpid();
  memcpy(h->strides, strides, sizeof h->strides);
  g_slot = (sg_slot *)(p + h->slots_at);
  g_clock = (sg_clock *)(p + h->clocks_at);
  g_data = p + h->data_at;
  g_slots = slots;
  g_slot_bytes = slot_bytes;
  g_bytes = bytes;
  for (uint32_t i = 0; i < slots; i++) atomic_store(&g_slot[i].version, 1);
  atomic_thread_fence(memory_order_seq_cst);
  h->magic = SG_MAGIC;
  g_head = h;
  return 0;
}

/* CUPTI's functions; `dropped` may be NULL. */
SG_API void sg_functions(void *flush_all, void *get_timestamp, void *num_dropped) {
  atomic_store(&g_flush, (flush_fn)flush_all);
  atomic_store(&g_now, (clock_fn)get_timestamp);
  atomic_store(&g_dropped, (dropped_fn)num_dropped);
}

/* Start the flush thread if it does not run. 0 or -errno. */
SG_API int sg_start(uint32_t period_ms) {
  if (!g_head) return -EINVAL;
  atomic_store(&g_period_ns, (uint64_t)(period_ms ? period_ms : 50) * 1000000ull);
  if (atomic_load(&g_quit) && wait_while(&g_thread, 1000)) return -EBUSY; /* the old one is still on its way out */
  uint32_t no = 0;
  if (!atomic_compare_exchange_strong(&g_thread, &no, 1)) return 0;
  atomic_store(&g_quit, 0);
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* the server's signals are not ours */
  pthread_t thread;
  int rc = pthread_create(&thread, NULL, loop, NULL);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc) {
    atomic_store(&g_thread, 0);
    return -rc;
  }
  pthread_detach(thread);
  return 0;
}

/* A session begins: its epoch. Two clock samples are taken at once; call it just before the first enable. */
SG_API uint64_t sg_begin(void) {
  uint64_t epoch = atomic_fetch_add(&g_head->epoch, 1) + 1;
  sample_clock();
  sample_clock();
  atomic_store(&g_head->on, 1);
  wake();
  return epoch;
}

/* No flush from the flush thread any more; returns once a running one is over. 0 or -ETIMEDOUT. */
SG_API int sg_hold(uint32_t timeout_ms) {
  atomic_store(&g_head->on, 0);
  return wait_while(&g_flushing, timeout_ms);
}

/* Flush on the calling thread (flag 1 = forced: only with all kinds disabled) and sample the clock. CUptiResult. */
SG_API int sg_flush(uint32_t flag) {
  if (!g_head) return -1;
  sample_clock();
  return flush(flag);
}

/* End the flush thread. 0 or -ETIMEDOUT. */
SG_API int sg_stop(uint32_t timeout_ms) {
  if (!g_head) return 0;
  atomic_store(&g_head->on, 0);
  atomic_store(&g_quit, 1);
  wake();
  return wait_while(&g_thread, timeout_ms);
}

/* At exit libcupti's own destructors run; no flush may be on its way then. Libraries loaded later are torn down first. */
__attribute__((destructor)) static void at_exit(void) {
  if (g_head && g_head->pid == (uint32_t)getpid()) sg_stop(200); /* a fork has no flush thread to wait for */
}
