/* A model of what AMD's user-space runtime expects below it: the kernel driver's file, its topology and the SDMA engines.
 *
 * Preloaded into a process, it stands in for /dev/kfd, /dev/dri/render* and the topology under /sys; the real
 * libhsa-runtime64 then runs unchanged on a machine without a GPU. "GPU memory" is one anonymous file of this process.
 *
 *   files.c    which files are ours: open, fopen, opendir, ioctl and the few libdrm calls the runtime makes
 *   driver.c   the ioctls: memory and who may touch it, queues
 *   events.c   what a waiting thread of the runtime sleeps on
 *   engines.c  one thread that executes all rings: SDMA packets, and AQL packets as far as a kernel-less GPU can
 *
 * What it does not model: time, caches, shader cores (a kernel completes without effect and is counted), resets, IPC.
 * It encodes one reading of the kernel interface. Nothing that runs on it is a measurement.
 *
 * Environment, all set by tests/amd/run_real.py:
 *   C3_MODEL_TOPOLOGY     folder served as the driver's topology
 *   C3_MODEL_GPUS         number of GPUs in it
 *   C3_MODEL_SDMA_QUEUES  most SDMA queues that a GPU may have (unset: no limit)
 *   C3_MODEL_REPORTS_FAULTS  if set, the runtime is told of an engine's fault, upon which it ends the process; else the
 *                            engine just stops, so that a test can go on
 *   C3_MODEL_TRACE        if set, ioctls and queues are told on stderr
 */
#ifndef C3_MODEL_H
#define C3_MODEL_H

#include <linux/kfd_ioctl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIRST_GPU_ID = 1001, MOST_GPUS = 32, MOST_QUEUES = 1024 };

/* A queue as the runtime created it. Pointers are addresses of this process: rings lie in host memory. */
struct queue {
    bool used, stopped; /* stopped: a fault or an unknown packet; only destroying the queue ends that */
    bool started;       /* AQL only: the packet at the read pointer has been looked at before */
    uint32_t gpu_id, type;
    uint64_t ring, ring_nbytes;
    uint64_t *write_pointer, *read_pointer;
    uint64_t copies, copied_nbytes;
};

/* files.c */
int model_file(void); /* descriptor of the file that holds doorbells and all "GPU memory" */

/* driver.c */
int driver_ioctl(unsigned nr, void *argument); /* as the kernel: 0, or -1 and errno */
/* Call work(pointer, nbytes, context) on each piece of [address, address + nbytes) as the GPU sees it. False, with the
 * first bad address in *bad, where a piece is not mapped to that GPU. */
typedef void (*piece_work)(char *pointer, size_t nbytes, void *context);
bool driver_touch(uint32_t gpu_id, uint64_t address, uint64_t nbytes, piece_work work, void *context, uint64_t *bad);
void *driver_word(uint32_t gpu_id, uint64_t address); /* of 4 or 8 bytes; NULL where it is not mapped */
uint64_t driver_ticks(void);                           /* the GPU's clock, 100 MHz */
bool driver_traces(void);

/* events.c; those that give bool: false where there is no such event, or no room for one more */
bool events_create(struct kfd_ioctl_create_event_args *args);
bool events_destroy(uint32_t id);
bool events_reset(uint32_t id);
void events_set(uint32_t id);
void events_wait(struct kfd_ioctl_wait_events_args *args);
void events_report_fault(uint32_t gpu_id, uint64_t address); /* to the runtime, if C3_MODEL_REPORTS_FAULTS is set */

/* engines.c */
int engines_create(const struct kfd_ioctl_create_queue_args *args); /* index of the new queue, -1: none left */
bool engines_destroy(uint32_t index);

/* What a test may ask, by ctypes.CDLL(None). */
long c3_model_kernels(void);                            /* kernels dispatched so far */
int c3_model_queues(uint64_t *rows, int most);          /* rows of (gpu, type, copy packets, bytes, stopped) */

#endif
