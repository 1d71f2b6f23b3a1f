/* A double of AMD's libhsa-runtime64: what its callers see of the library, with memory of the host for that of GPUs,
 * one thread for each engine, and faults on request (control.c). It is compiled against AMD's own header, so that a
 * function, enum or struct that does not fit does not compile. What it answers is what ROCr 6.1.2 was seen to answer;
 * tests that run on both compare the two. It proves what our code does; nothing about hardware, least of all times.
 *
 * RELEASE is the release of ROCm that it stands for: 5 has no copies on chosen engines, 6 no preferred engines. */
#ifndef C3_DOUBLE_H
#define C3_DOUBLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hsa/hsa.h"
#include "hsa/hsa_ext_amd.h"

#ifndef RELEASE
#define RELEASE 7
#endif

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_ENGINES 16
#define KERNEL MAX_ENGINES        /* number of the queue that stands for kernels on compute units */
#define TICKS_PER_S 100000000ull  /* not 1 GHz, so that ticks taken for nanoseconds are found out */
#define BLOCK_NBYTES (2ull << 20) /* smaller buffers of a GPU share a block of this size, and the access to it */

struct pool {
  struct agent *owner;
  uint32_t flags;
  hsa_amd_segment_t segment;
  size_t nbytes, used;
};

struct signal {
  uint64_t mark; /* says that this is a signal; 0 once it is destroyed */
  _Atomic int64_t value;
  uint64_t start, end; /* ticks of the last copy that it counted */
  _Atomic bool has_times;
};

struct copy {
  struct copy *next;
  char *dst;
  const char *src;
  size_t nbytes;
  struct agent *dst_agent, *src_agent;
  struct signal *done;
  unsigned epoch; /* copies of an earlier one are dropped: see c3double_reset */
  uint32_t depends;
  struct signal *depend[];
};

/* One SDMA engine with its queue; a GPU's last one stands for kernels that copy. Guarded by its lock. */
struct engine {
  struct agent *owner;
  int number;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct copy *first, *last;
  int waiting;    /* copies in the queue, the one under way too */
  bool running;   /* its thread was started */
  _Atomic bool waits; /* its first copy waits for a signal */
  bool held;      /* it does nothing until it is let go or reset */
  bool has_queue; /* the driver gave it one */
  bool lost;      /* it got none, and is taken for busy from then on */
};

struct agent {
  int number; /* of its kind */
  hsa_device_type_t type;
  int pools;
  struct pool pool[3];
  int queues; /* that the driver gave to its engines */
  struct engine engine[MAX_ENGINES + 1];
};

/* What the environment says when the library is initialised. */
struct settings {
  int gpus;               /* C3_DOUBLE_GPUS, 8 */
  int host_engines;       /* C3_DOUBLE_HOST_ENGINES, 2 */
  int peer_engines;       /* C3_DOUBLE_PEER_ENGINES, 14; 0 is a partitioned GPU */
  int queue_copies;       /* C3_DOUBLE_QUEUE_COPIES, 6720: more waiting ones block the submit call */
  int sdma_queues;        /* C3_DOUBLE_SDMA_QUEUES, 64: of a GPU, in the driver */
  bool driver;            /* C3_DOUBLE_DRIVER=0: as without /dev/kfd */
  bool recommends;        /* C3_DOUBLE_RECOMMENDS=0: no engine is preferred, as in a virtual machine */
  bool sdma, peer_sdma;   /* HSA_ENABLE_SDMA, HSA_ENABLE_PEER_SDMA */
};

enum outcome { COPIED, FAILED, HUNG, CORRUPTED, DROPPED, NO_ACCESS };

/* agents.c */
extern struct settings settings;
extern struct agent agents[MAX_GPUS + 1];
extern int agent_count;
extern _Atomic int initialised;
bool of_this_process(void);
struct agent *agent_of(hsa_agent_t handle);
uint64_t ticks(void);
#define REQUIRE_INIT \
  do { \
    if (!initialised) return HSA_STATUS_ERROR_NOT_INITIALIZED; \
  } while (0)

/* memory.c */
bool may_touch(const struct agent *agent, const void *address, size_t nbytes);
uint32_t agent_bit(const struct agent *agent);

/* signals.c */
struct signal *signal_of(hsa_signal_t handle);
void signal_add(struct signal *signal, int64_t change);
void signal_set(struct signal *signal, int64_t value);

/* engines.c */
extern _Atomic unsigned epoch;
extern _Atomic bool profiling;
void engines_look(void); /* a signal that copies may wait for has become 0 */
void engines_reset(void);

/* control.c */
bool fault_at_submit(const struct engine *engine);
bool fault_at_allocation(const struct agent *agent);
bool fault_keeps_busy(const struct engine *engine);
enum outcome fault_of_copy(const struct engine *engine);
void fault_from_environment(void);
void journal_add(const struct engine *engine, const struct copy *copy, uint64_t start, uint64_t end, enum outcome how);

#endif
