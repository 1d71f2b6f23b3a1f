/* Signals: numbers that copies count down, and waiting for them. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "double.h"

#define MARK 0x5167a15167a1ull

/* Callers that wait for any signal sleep here; who changes one pays for waking only when somebody sleeps. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic int sleepers;

static void set_clock(void) {
  pthread_condattr_t how;
  pthread_condattr_init(&how);
  pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &how);
}

struct signal *signal_of(hsa_signal_t handle) {
  struct signal *signal = (struct signal *)(uintptr_t)handle.handle;
  return signal && signal->mark == MARK ? signal : NULL;
}

static void tell(const struct signal *signal) {
  if (!signal->value) engines_look();
  pthread_once(&once, set_clock);
  if (!sleepers) return;
  pthread_mutex_lock(&lock);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

void signal_add(struct signal *signal, int64_t change) {
  atomic_fetch_add(&signal->value, change);
  tell(signal);
}

void signal_set(struct signal *signal, int64_t value) {
  atomic_store(&signal->value, value);
  tell(signal);
}

EXPORT hsa_status_t hsa_signal_create(hsa_signal_value_t value, uint32_t consumers, const hsa_agent_t *list,
                                      hsa_signal_t *handle) {
  REQUIRE_INIT;
  if (!handle || (consumers && !list)) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  struct signal *signal = calloc(1, sizeof *signal);
  if (!signal) return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
  signal->mark = MARK;
  signal->value = value;
  handle->handle = (uintptr_t)signal;
  return HSA_STATUS_SUCCESS;
}

/* Its memory is kept, so that a use after this is found and not undefined. */
EXPORT hsa_status_t hsa_signal_destroy(hsa_signal_t handle) {
  REQUIRE_INIT;
  struct signal *signal = signal_of(handle);
  if (!signal) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  signal->mark = 0;
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_signal_value_t hsa_signal_load_scacquire(hsa_signal_t handle) { return signal_of(handle)->value; }

EXPORT void hsa_signal_store_screlease(hsa_signal_t handle, hsa_signal_value_t value) {
  signal_set(signal_of(handle), value);
}

static bool holds(hsa_signal_condition_t condition, int64_t value, int64_t compared) {
  switch (condition) {
    case HSA_SIGNAL_CONDITION_EQ: return value == compared;
    case HSA_SIGNAL_CONDITION_NE: return value != compared;
    case HSA_SIGNAL_CONDITION_LT: return value < compared;
    default: return value >= compared;
  }
}

EXPORT hsa_signal_value_t hsa_signal_wait_scacquire(hsa_signal_t handle, hsa_signal_condition_t condition,
                                                    hsa_signal_value_t compared, uint64_t limit_ticks,
                                                    hsa_wait_state_t state) {
  (void)state;
  struct signal *signal = signal_of(handle);
  struct timespec until;
  const bool forever = limit_ticks == UINT64_MAX;
  clock_gettime(CLOCK_MONOTONIC, &until);
  if (!forever) {
    const uint64_t ns = (uint64_t)until.tv_nsec + limit_ticks % TICKS_PER_S * (1000000000ull / TICKS_PER_S);
    until.tv_sec += (time_t)(limit_ticks / TICKS_PER_S + ns / 1000000000ull);
    until.tv_nsec = (long)(ns % 1000000000ull);
  }
  pthread_once(&once, set_clock);
  sleepers++;
  pthread_mutex_lock(&lock);
  while (!holds(condition, signal->value, compared)) {
    if (forever)
      pthread_cond_wait(&changed, &lock);
    else if (pthread_cond_timedwait(&changed, &lock, &until) == ETIMEDOUT)
      break;
  }
  const int64_t value = signal->value;
  pthread_mutex_unlock(&lock);
  sleepers--;
  return value;
}
