/* What stands in the memfd of the ring, as readers map it: header, slots, clock samples, then the buffers.
 *
 * Sizes and offsets are the contract with sgtop_core.kernels.ring and sgtop_agent.kernels.helper, which have the
 * counters in the same order. A change that a reader must know of raises SG_ABI.
 */
#ifndef SGTOP_LAYOUT_H
#define SGTOP_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SG_MAGIC 0x474e495247533153ull /* "S1SGRING" */
#define SG_ABI 1u
#define SG_MAX_SLOTS 256u
#define SG_KINDS 64u
#define SG_CLOCKS 256u
#define SG_HEADER_BYTES 36864u /* what stands before the buffers: header, slots, clocks */

typedef struct {
  _Atomic uint64_t version; /* odd: not for readers */
  uint64_t order;           /* 0, 1, 2, … in the order of completion */
  uint64_t valid;           /* bytes of records */
  uint64_t t_ns;            /* CLOCK_MONOTONIC when CUPTI handed it back */
  uint64_t epoch;           /* which tracing session (sg_begin) */
  uint64_t reserved[3];
} sg_slot;

typedef struct {
  _Atomic uint64_t version; /* 2·n + 2 once sample n stands here; odd while it is written */
  uint64_t mono0, cupti, mono1; /* ns, CUPTI ticks, ns */
  uint64_t epoch;
  uint64_t reserved[3];
} sg_clock;

typedef struct {
  uint64_t magic;
  uint32_t abi, header_bytes;
  uint32_t slots, clocks;
  uint64_t slot_bytes, slots_at, clocks_at, data_at; /* offsets in the memfd */
  uint32_t cupti_version, pid;
  uint64_t reserved0[8];
  uint32_t strides[SG_KINDS]; /* bytes of a record by activity kind; 0: not a kind we enable. At 128. */
  /* Counters, at 384. */
  _Atomic uint64_t head;          /* buffers published */
  _Atomic uint64_t epoch;         /* sessions begun */
  _Atomic uint64_t on;            /* 1 while a session runs */
  _Atomic uint64_t lent;          /* buffers that CUPTI holds now */
  _Atomic uint64_t requested;     /* request callbacks */
  _Atomic uint64_t completed;     /* complete callbacks for our buffers */
  _Atomic uint64_t empty;         /* … without a record */
  _Atomic uint64_t recycled;      /* published buffers overwritten by newer ones */
  _Atomic uint64_t late;          /* … on the thread that asked, because no washed slot was ready */
  _Atomic uint64_t spilled;       /* buffers lent from outside the ring since every slot was lent; records lost */
  _Atomic uint64_t spilled_bytes;
  _Atomic uint64_t starved;       /* requests that got nothing */
  _Atomic uint64_t foreign;       /* completed buffers that are not ours */
  _Atomic uint64_t flushes;
  _Atomic uint64_t flush_errors;
  _Atomic uint64_t last_error;    /* the last CUptiResult that was not 0 */
  _Atomic uint64_t dropped;       /* records that CUPTI says it dropped */
  _Atomic uint64_t records;       /* walked by the flush thread */
  _Atomic uint64_t kernels;       /* … of them of kind 10 */
  _Atomic uint64_t untimed;       /* … with start == 0 or end < start */
  _Atomic uint64_t malformed;     /* buffers whose walk met a kind that we do not enable */
  _Atomic uint64_t unwalked;      /* buffers overwritten before the walk */
  _Atomic uint64_t clock_head;    /* clock samples taken */
} sg_header;

_Static_assert(offsetof(sg_header, strides) == 128, "readers know this offset");
_Static_assert(offsetof(sg_header, head) == 384, "readers know this offset");
_Static_assert(sizeof(sg_slot) == 64 && sizeof(sg_clock) == 64, "readers know these sizes");
_Static_assert(sizeof(sg_header) <= 1024, "slots start at 1024");
_Static_assert(1024 + 64 * (SG_MAX_SLOTS + SG_CLOCKS) <= SG_HEADER_BYTES, "headers fit");

#endif
