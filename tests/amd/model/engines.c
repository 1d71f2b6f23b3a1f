/* The rings. One thread executes the packets of all queues in turn; a queue that has to wait lets the others go on. */
#define _GNU_SOURCE
#include "model.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum outcome { DONE, WAITING, BROKEN };
enum { PACKETS_A_TURN = 64 };

static struct queue queues[MOST_QUEUES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long kernels;

static enum outcome fault(struct queue *q, const char *what, uint64_t address) {
    fprintf(stderr, "[model] GPU %u, SDMA queue %td stops: %s at 0x%lx is not mapped to this GPU\n",
            q->gpu_id - FIRST_GPU_ID, q - queues, what, (unsigned long)address);
    events_report_fault(q->gpu_id, address);
    return BROKEN;
}

/* --- SDMA packets, as the engines of GFX 9 read them: dword 0 is operation, sub-operation and flags ---------------- */

enum sdma { NOP = 0, COPY = 1, FENCE = 5, TRAP = 6, POLL = 8, ATOMIC = 10, FILL = 11, TIMESTAMP = 13 };
enum { POLL_EQUAL = 3, ATOMIC_ADD_64 = 47, GLOBAL_TIMESTAMP = 2 };

static uint64_t address_at(const uint32_t *packet, int dword) {
    return packet[dword] | (uint64_t)packet[dword + 1] << 32;
}

struct cursor { /* of a copy: the destination's pieces, for each of which the source's are walked */
    struct queue *q;
    uint64_t source, bad_source;
    char *to;
    bool ok;
    uint32_t fill;
};

static void copy_from_piece(char *from, size_t nbytes, void *context) {
    struct cursor *at = context;
    memcpy(at->to, from, nbytes);
    at->to += nbytes;
}

static void copy_to_piece(char *to, size_t nbytes, void *context) {
    struct cursor *at = context;
    at->to = to;
    if (at->ok) at->ok = driver_touch(at->q->gpu_id, at->source, nbytes, copy_from_piece, at, &at->bad_source);
    at->source += nbytes;
}

static void fill_piece(char *to, size_t nbytes, void *context) {
    const struct cursor *at = context;
    for (size_t i = 0; i + 4 <= nbytes; i += 4) memcpy(to + i, &at->fill, 4);
}

static enum outcome copy(struct queue *q, const uint32_t *packet) {
    uint64_t nbytes = (packet[1] & 0x3fffffff) + 1ull, bad;
    struct cursor at = {.q = q, .source = address_at(packet, 3), .ok = true};
    if (!driver_touch(q->gpu_id, address_at(packet, 5), nbytes, copy_to_piece, &at, &bad)) return fault(q, "a write", bad);
    if (!at.ok) return fault(q, "a read", at.bad_source);
    q->copies++;
    q->copied_nbytes += nbytes;
    return DONE;
}

/* Execute one SDMA packet; its length in dwords goes to *length. */
static enum outcome sdma_packet(struct queue *q, const uint32_t *packet, int *length) {
    unsigned operation = packet[0] & 0xff, sub = packet[0] >> 8 & 0xff;
    /* A packet never runs over the end of the ring, but a shorter one may end there: read no dword that it lacks. */
    uint64_t address = operation == NOP || operation == TRAP ? 0 : address_at(packet, 1), bad;
    void *word;
    switch (operation) {
    case NOP:
        *length = 1 + (packet[0] >> 16 & 0x3fff);
        return DONE;
    case COPY:
        *length = 7;
        if (sub) break; /* only linear copies are known here */
        return copy(q, packet);
    case FILL: {
        *length = 5;
        struct cursor at = {.fill = packet[3]};
        uint64_t nbytes = (packet[4] & 0x3fffffff & ~3u) + 4ull;
        return driver_touch(q->gpu_id, address, nbytes, fill_piece, &at, &bad) ? DONE : fault(q, "a fill", bad);
    }
    case FENCE:
        *length = 4;
        if (!(word = driver_word(q->gpu_id, address))) return fault(q, "a fence", address);
        __atomic_store_n((uint32_t *)word, packet[3], __ATOMIC_RELEASE);
        return DONE;
    case TRAP:
        *length = 2;
        events_set(packet[1] & 0xfffffff);
        return DONE;
    case POLL:
        *length = 6;
        if (!(packet[0] >> 31)) return DONE; /* a flush of the host data path, not a poll of memory */
        if ((packet[0] >> 28 & 7) != POLL_EQUAL) break;
        if (!(word = driver_word(q->gpu_id, address))) return fault(q, "a poll", address);
        return (__atomic_load_n((uint32_t *)word, __ATOMIC_ACQUIRE) & packet[4]) == packet[3] ? DONE : WAITING;
    case ATOMIC:
        *length = 8;
        if (packet[0] >> 25 != ATOMIC_ADD_64) break;
        if (!(word = driver_word(q->gpu_id, address))) return fault(q, "an atomic", address);
        __atomic_fetch_add((uint64_t *)word, address_at(packet, 3), __ATOMIC_ACQ_REL);
        return DONE;
    case TIMESTAMP:
        *length = 3;
        if (sub != GLOBAL_TIMESTAMP) break;
        if (!(word = driver_word(q->gpu_id, address))) return fault(q, "a time stamp", address);
        *(uint64_t *)word = driver_ticks();
        return DONE;
    }
    fprintf(stderr, "[model] SDMA packet 0x%08x is not known here; the queue stops\n", packet[0]);
    return BROKEN;
}

/* --- AQL packets: barriers are executed, kernels are counted and complete without effect --------------------------- */

enum aql { VENDOR = 0, INVALID = 1, KERNEL = 2, BARRIER_AND = 3, BARRIER_OR = 5 };

/* What a signal's handle points to. */
struct amd_signal {
    int64_t kind, value;
    uint64_t *event_mailbox;
    uint32_t event_id, unused;
    uint64_t start, end;
};

struct aql_packet {
    uint16_t header, format;
    uint32_t body;
    struct amd_signal *dependencies[5]; /* of a barrier; [0], then value, mask and condition of a vendor barrier */
    uint64_t reserved;
    struct amd_signal *completion;
};

static bool barrier_holds(const struct aql_packet *packet, unsigned type) {
    int waited = 0, met = 0;
    if (type == VENDOR) { /* AMD's barrier on one signal's value; other vendor packets have nothing to wait for */
        const struct amd_signal *signal = packet->dependencies[0];
        if ((packet->format & 0xff) != 2 || !signal) return false;
        int64_t value = (int64_t)packet->dependencies[1], mask = (int64_t)packet->dependencies[2];
        int64_t now = __atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) & mask;
        switch ((uint32_t)(uintptr_t)packet->dependencies[3]) {
        case 0: return now != value;
        case 1: return now == value;
        case 2: return now >= value;
        default: return now < value;
        }
    }
    for (int i = 0; i < 5; i++)
        if (packet->dependencies[i]) {
            waited++;
            met += __atomic_load_n(&packet->dependencies[i]->value, __ATOMIC_ACQUIRE) == 0;
        }
    return type == BARRIER_OR ? waited && !met : met < waited;
}

static void complete(struct amd_signal *signal) {
    if (!signal) return;
    signal->end = driver_ticks();
    __atomic_fetch_sub(&signal->value, 1, __ATOMIC_ACQ_REL);
    if (!signal->event_mailbox) return;
    __atomic_store_n(signal->event_mailbox, signal->event_id, __ATOMIC_RELEASE);
    events_set(signal->event_id);
}

static enum outcome aql_packet(struct queue *q, struct aql_packet *packet) {
    unsigned type = __atomic_load_n(&packet->header, __ATOMIC_ACQUIRE) & 0xff;
    if (type == INVALID) return WAITING; /* the write pointer moves before the packet is complete */
    if (!q->started && packet->completion) packet->completion->start = driver_ticks();
    q->started = true;
    if (type != KERNEL && barrier_holds(packet, type)) return WAITING;
    if (type == KERNEL) __atomic_fetch_add(&kernels, 1, __ATOMIC_RELAXED);
    struct amd_signal *completion = packet->completion;
    __atomic_store_n(&packet->header, INVALID, __ATOMIC_RELEASE); /* the slot is free before anyone hears of it */
    q->started = false;
    complete(completion);
    return DONE;
}

/* --- The thread -------------------------------------------------------------------------------------------------- */

/* One packet of a queue, the read pointer moved past it. SDMA pointers count bytes, AQL pointers packets. */
static enum outcome step(struct queue *q) {
    uint64_t at = *q->read_pointer;
    if (at >= __atomic_load_n(q->write_pointer, __ATOMIC_ACQUIRE)) return WAITING;
    uint64_t next = at + 1;
    enum outcome outcome;
    if (q->type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL) {
        outcome = aql_packet(q, (struct aql_packet *)q->ring + at % (q->ring_nbytes / sizeof(struct aql_packet)));
    } else {
        int dwords = 0;
        outcome = sdma_packet(q, (const uint32_t *)(q->ring + at % q->ring_nbytes), &dwords);
        next = at + 4ull * dwords;
    }
    if (outcome == DONE) __atomic_store_n(q->read_pointer, next, __ATOMIC_RELEASE);
    return outcome;
}

static void *run(void *unused) {
    (void)unused;
    for (long pause_ns = 0;;) {
        bool moved = false;
        pthread_mutex_lock(&lock);
        for (struct queue *q = queues; q < queues + MOST_QUEUES; q++)
            for (int i = 0; q->used && !q->stopped && i < PACKETS_A_TURN; i++) {
                enum outcome outcome = step(q);
                q->stopped = outcome == BROKEN;
                if (outcome != DONE) break;
                moved = true;
            }
        pthread_mutex_unlock(&lock);
        pause_ns = moved ? 1000 : pause_ns < 100000 ? 2 * pause_ns + 1000 : pause_ns; /* idle: look less often */
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    }
    return NULL;
}

static void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL)) __builtin_trap();
    pthread_detach(thread);
}

static bool is_sdma(uint32_t type) { return type == KFD_IOC_QUEUE_TYPE_SDMA || type == KFD_IOC_QUEUE_TYPE_SDMA_XGMI; }

int engines_create(const struct kfd_ioctl_create_queue_args *args) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *limit = getenv("C3_MODEL_SDMA_QUEUES");
    int found = -1, taken = 0;
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
    for (int i = MOST_QUEUES - 1; i >= 0; i--) {
        if (!queues[i].used) found = i;
        else if (queues[i].gpu_id == args->gpu_id && is_sdma(queues[i].type)) taken++;
    }
    if (limit && is_sdma(args->queue_type) && taken >= atoi(limit)) found = -1;
    if (found >= 0)
        queues[found] = (struct queue){
            .used = true, .gpu_id = args->gpu_id, .type = args->queue_type,
            .ring = args->ring_base_address, .ring_nbytes = args->ring_size,
            .write_pointer = (uint64_t *)args->write_pointer_address,
            .read_pointer = (uint64_t *)args->read_pointer_address,
        };
    pthread_mutex_unlock(&lock);
    return found;
}

bool engines_destroy(uint32_t index) {
    pthread_mutex_lock(&lock);
    bool was = index < MOST_QUEUES && queues[index].used;
    if (was) queues[index].used = false;
    pthread_mutex_unlock(&lock);
    return was;
}

long c3_model_kernels(void) { return __atomic_load_n(&kernels, __ATOMIC_RELAXED); }

int c3_model_queues(uint64_t *rows, int most) {
    int count = 0;
    pthread_mutex_lock(&lock);
    for (const struct queue *q = queues; q < queues + MOST_QUEUES && count < most; q++)
        if (q->used) {
            const uint64_t row[] = {q->gpu_id - FIRST_GPU_ID, q->type, q->copies, q->copied_nbytes, q->stopped};
            memcpy(rows + 5 * count++, row, sizeof row);
        }
    pthread_mutex_unlock(&lock);
    return count;
}
