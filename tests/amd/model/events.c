/* Events: what a thread of the runtime sleeps on until an engine, or another thread, sets it. */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_EVENTS = 8192 };

static struct { bool used, set, resets_itself; uint32_t type; } events[MOST_EVENTS];
static struct kfd_hsa_memory_exception_data last_fault;
static pthread_mutex_t event_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t event_set = PTHREAD_COND_INITIALIZER;

void events_set(uint32_t id) {
    pthread_mutex_lock(&event_lock);
    if (id < MOST_EVENTS && events[id].used) events[id].set = true;
    pthread_cond_broadcast(&event_set);
    pthread_mutex_unlock(&event_lock);
}

void events_report_fault(uint32_t gpu_id, uint64_t address) {
    if (!getenv("C3_MODEL_REPORTS_FAULTS")) return;
    pthread_mutex_lock(&event_lock);
    last_fault = (struct kfd_hsa_memory_exception_data){.failure.NotPresent = 1, .va = address, .gpu_id = gpu_id};
    for (uint32_t id = 1; id < MOST_EVENTS; id++)
        if (events[id].used && events[id].type == KFD_IOC_EVENT_MEMORY) events[id].set = true;
    pthread_cond_broadcast(&event_set);
    pthread_mutex_unlock(&event_lock);
}

bool events_create(struct kfd_ioctl_create_event_args *a) {
    pthread_mutex_lock(&event_lock);
    uint32_t id = 1;
    while (id < MOST_EVENTS && events[id].used) id++;
    if (id < MOST_EVENTS) {
        events[id].used = true;
        events[id].set = false;
        events[id].resets_itself = a->auto_reset;
        events[id].type = a->event_type;
    }
    pthread_mutex_unlock(&event_lock);
    if (id == MOST_EVENTS) return false;
    a->event_id = a->event_slot_index = a->event_trigger_data = id;
    if (!a->event_page_offset) a->event_page_offset = 1;
    return true;
}

bool events_destroy(uint32_t id) {
    if (id >= MOST_EVENTS) return false;
    pthread_mutex_lock(&event_lock);
    events[id].used = false;
    pthread_cond_broadcast(&event_set);
    pthread_mutex_unlock(&event_lock);
    return true;
}

bool events_reset(uint32_t id) {
    if (id >= MOST_EVENTS) return false;
    pthread_mutex_lock(&event_lock);
    events[id].set = false;
    pthread_mutex_unlock(&event_lock);
    return true;
}

void events_wait(struct kfd_ioctl_wait_events_args *a) {
    struct kfd_event_data *of = (struct kfd_event_data *)a->events_ptr;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t end_ns = until.tv_nsec + a->timeout % 1000 * 1000000ull;
    until.tv_sec += a->timeout / 1000 + end_ns / 1000000000;
    until.tv_nsec = end_ns % 1000000000;
    bool met = false, over = a->timeout == 0;
    pthread_mutex_lock(&event_lock);
    for (;;) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < a->num_events; i++) {
            uint32_t id = of[i].event_id;
            count += id >= MOST_EVENTS || events[id].set || !events[id].used;
        }
        met = count && (!a->wait_for_all || count == a->num_events);
        if (met || over) break;
        if (a->timeout == UINT32_MAX) pthread_cond_wait(&event_set, &event_lock);
        else over = pthread_cond_timedwait(&event_set, &event_lock, &until) == ETIMEDOUT;
    }
    for (uint32_t i = 0; met && i < a->num_events; i++) {
        uint32_t id = of[i].event_id;
        if (id >= MOST_EVENTS || !events[id].set) continue;
        if (events[id].type == KFD_IOC_EVENT_MEMORY) of[i].memory_exception_data = last_fault;
        if (events[id].resets_itself) events[id].set = false;
    }
    pthread_mutex_unlock(&event_lock);
    a->wait_result = met ? KFD_IOC_WAIT_RESULT_COMPLETE : KFD_IOC_WAIT_RESULT_TIMEOUT;
}
