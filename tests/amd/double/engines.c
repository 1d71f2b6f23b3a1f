/* SDMA engines: copies wait in an engine's queue, in order, and a thread does them one by one. */
#include <stdlib.h>
#include <string.h>

#include "double.h"

_Atomic unsigned epoch;
_Atomic bool profiling;

static bool is_gpu(const struct agent *agent) { return agent->type == HSA_DEVICE_TYPE_GPU; }
static int engine_count(void) { return settings.host_engines + settings.peer_engines; }

/* Between GPUs the engines that face peers copy, where there are any; else, and to and from the host, all can. */
static int first_engine(const struct agent *dst, const struct agent *src) {
  return is_gpu(dst) && is_gpu(src) && dst != src && settings.peer_engines ? settings.host_engines : 0;
}

/* The source's GPU copies with its own engines, whatever the addresses are. */
static struct agent *copier(struct agent *dst, struct agent *src) { return is_gpu(src) ? src : dst; }

/* Do one copy; false when it hangs. */
static bool carry_out(struct engine *engine, struct copy *copy) {
  enum outcome how = engine->number == KERNEL ? COPIED : fault_of_copy(engine);
  if (how == COPIED && !(may_touch(engine->owner, copy->dst, copy->nbytes) &&
                         may_touch(engine->owner, copy->src, copy->nbytes)))
    how = NO_ACCESS; /* the engine stops and nobody is told */
  const uint64_t start = ticks();
  if (how == COPIED || how == CORRUPTED) memcpy(copy->dst, copy->src, copy->nbytes);
  if (how == CORRUPTED) copy->dst[copy->nbytes / 2] ^= 1;
  const uint64_t end = ticks();
  journal_add(engine, copy, start, end, how);
  if (how == HUNG || how == NO_ACCESS) return false;
  if (profiling) {
    copy->done->start = start;
    copy->done->end = end;
    copy->done->has_times = true;
  }
  pthread_mutex_lock(&engine->lock); /* the engine is free before anybody can know that the copy is done */
  engine->waiting--;
  pthread_mutex_unlock(&engine->lock);
  if (how == FAILED)
    signal_set(copy->done, -1);
  else
    signal_add(copy->done, -1);
  return true;
}

/* Engines whose first copy waits for a signal: their threads sleep, and whoever sets a signal to 0 wakes them. */
static _Atomic int waiting_engines;

/* Whether the first copy can go, with the engine locked. Says first that the engine waits, and looks then, so that no
 * signal can come in between unseen. */
static bool due(struct engine *engine, const struct copy *copy) {
  if (copy->depends && !engine->waits) {
    engine->waits = true;
    waiting_engines++;
  }
  for (uint32_t i = 0; i < copy->depends; i++)
    if (copy->depend[i]->value) return false;
  if (engine->waits) {
    engine->waits = false;
    waiting_engines--;
  }
  return true;
}

void engines_look(void) {
  if (!waiting_engines) return;
  for (int i = 0; i < agent_count; i++)
    for (int k = 0; k <= MAX_ENGINES; k++) {
      struct engine *engine = &agents[i].engine[k];
      if (!engine->waits) continue;
      pthread_mutex_lock(&engine->lock);
      pthread_cond_broadcast(&engine->changed);
      pthread_mutex_unlock(&engine->lock);
    }
}

/* A copy that waits for a signal keeps all behind it waiting, as the packet that polls it does. */
static void *work(void *argument) {
  struct engine *engine = argument;
  pthread_mutex_lock(&engine->lock);
  for (;;) {
    struct copy *copy = engine->first;
    if (!copy || (copy->epoch == epoch && (engine->held || !due(engine, copy)))) {
      pthread_cond_wait(&engine->changed, &engine->lock);
      continue;
    }
    bool done = false;
    if (copy->epoch == epoch) {
      pthread_mutex_unlock(&engine->lock);
      done = carry_out(engine, copy);
      pthread_mutex_lock(&engine->lock);
      if (!done && copy->epoch == epoch) {
        engine->held = true;
        continue;
      }
    }
    if (!done) engine->waiting--; /* of an epoch that is over */
    engine->first = copy->next;
    if (!engine->first) engine->last = NULL;
    pthread_cond_broadcast(&engine->changed); /* there is room in the queue */
    free(copy);
  }
  return NULL;
}

static void enqueue(struct engine *engine, struct copy *copy) {
  pthread_mutex_lock(&engine->lock);
  if (!engine->running) {
    pthread_t thread;
    engine->running = !pthread_create(&thread, NULL, work, engine);
    if (engine->running) pthread_detach(thread);
  }
  while (engine->waiting >= settings.queue_copies && copy->epoch == epoch)
    pthread_cond_wait(&engine->changed, &engine->lock); /* the caller blocks: ROCr has no other way to say "full" */
  copy->next = NULL;
  if (engine->last)
    engine->last->next = copy;
  else
    engine->first = copy;
  engine->last = copy;
  engine->waiting++;
  if (engine->first == copy && due(engine, copy)) pthread_cond_broadcast(&engine->changed);
  pthread_mutex_unlock(&engine->lock);
}

/* Which queue takes a copy that was asked of an engine; kernels take those within a GPU unless an engine is forced, and
 * those that no engine can do. The call succeeds in all cases. */
static struct engine *taker(struct engine *asked, const struct agent *dst, const struct agent *src, bool force) {
  struct agent *owner = asked->owner;
  const bool between_gpus = is_gpu(dst) && is_gpu(src) && dst != src;
  if (!settings.sdma || (between_gpus && !settings.peer_sdma) || (dst == src && !force))
    return &owner->engine[KERNEL];
  pthread_mutex_lock(&asked->lock);
  if (!asked->has_queue && !asked->lost) {
    if (owner->queues < settings.sdma_queues) {
      asked->has_queue = true;
      owner->queues++;
    } else {
      asked->lost = true;
    }
  }
  const bool lost = asked->lost;
  pthread_mutex_unlock(&asked->lock);
  return lost ? &owner->engine[KERNEL] : asked;
}

#if RELEASE >= 6
EXPORT hsa_status_t hsa_amd_memory_async_copy_on_engine(void *dst, hsa_agent_t dst_handle, const void *src,
                                                        hsa_agent_t src_handle, size_t nbytes, uint32_t depends,
                                                        const hsa_signal_t *depend, hsa_signal_t done,
                                                        hsa_amd_sdma_engine_id_t bit, bool force) {
  REQUIRE_INIT;
  struct agent *dst_agent = agent_of(dst_handle), *src_agent = agent_of(src_handle);
  if (!dst || !src || (depends != 0) != (depend != NULL)) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  if (!dst_agent || !src_agent) return HSA_STATUS_ERROR_INVALID_AGENT;
  for (uint32_t i = 0; i < depends; i++)
    if (!signal_of(depend[i])) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  if (!signal_of(done)) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  if (!nbytes) return HSA_STATUS_SUCCESS; /* and the signal is never touched */
  if (!is_gpu(dst_agent) && !is_gpu(src_agent)) return HSA_STATUS_ERROR;
  const int number = __builtin_ffs((int)bit) - 1;
  if (number < first_engine(dst_agent, src_agent) || number >= engine_count() || bit & (bit - 1u))
    return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  struct engine *asked = &copier(dst_agent, src_agent)->engine[number];
  if (fault_at_submit(asked)) return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
  struct copy *copy = malloc(sizeof *copy + depends * sizeof copy->depend[0]);
  if (!copy) return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
  *copy = (struct copy){NULL, dst, src, nbytes, dst_agent, src_agent, signal_of(done), epoch, depends};
  for (uint32_t i = 0; i < depends; i++) copy->depend[i] = signal_of(depend[i]);
  enqueue(taker(asked, dst_agent, src_agent, force), copy);
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_status_t hsa_amd_memory_copy_engine_status(hsa_agent_t dst_handle, hsa_agent_t src_handle, uint32_t *mask) {
  REQUIRE_INIT;
  struct agent *dst = agent_of(dst_handle), *src = agent_of(src_handle);
  if (!dst || !src || dst == src) return HSA_STATUS_ERROR_INVALID_AGENT;
  if (!mask) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  if (!is_gpu(dst) && !is_gpu(src)) return HSA_STATUS_ERROR_INVALID_AGENT;
  *mask = 0;
  for (int k = first_engine(dst, src); k < engine_count(); k++) {
    struct engine *engine = &copier(dst, src)->engine[k];
    pthread_mutex_lock(&engine->lock);
    const bool idle = !engine->waiting && !engine->lost;
    pthread_mutex_unlock(&engine->lock);
    if (idle && !fault_keeps_busy(engine)) *mask |= 1u << k;
  }
  return *mask ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}
#endif

#if RELEASE >= 7
#if HSA_AMD_INTERFACE_VERSION_MINOR < 8 /* headers before this one do not declare it */
hsa_status_t hsa_amd_memory_get_preferred_copy_engine(hsa_agent_t, hsa_agent_t, uint32_t *);
#endif
/* One even engine for each pair of GPUs. The pairing is ours, not the driver's. */
EXPORT hsa_status_t hsa_amd_memory_get_preferred_copy_engine(hsa_agent_t dst_handle, hsa_agent_t src_handle,
                                                             uint32_t *mask) {
  REQUIRE_INIT;
  const struct agent *dst = agent_of(dst_handle), *src = agent_of(src_handle);
  if (!dst || !src) return HSA_STATUS_ERROR_INVALID_AGENT;
  if (!mask) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  const bool full = settings.recommends && settings.peer_engines == 14 && settings.gpus == 8;
  *mask = full && is_gpu(dst) && is_gpu(src) && dst != src ? 1u << 2 * (dst->number ^ src->number) : 0;
  return HSA_STATUS_SUCCESS;
}
#endif

EXPORT hsa_status_t hsa_amd_profiling_async_copy_enable(bool on) {
  REQUIRE_INIT;
  profiling = on;
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_status_t hsa_amd_profiling_get_async_copy_time(hsa_signal_t handle,
                                                          hsa_amd_profiling_async_copy_time_t *time) {
  REQUIRE_INIT;
  const struct signal *signal = signal_of(handle);
  if (!signal || !time) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  if (!signal->has_times) return HSA_STATUS_ERROR;
  time->start = signal->start;
  time->end = signal->end;
  return HSA_STATUS_SUCCESS;
}

/* Forget all copies that wait or hang, without a word to their signals; returns when every queue is empty. */
void engines_reset(void) {
  epoch++;
  for (int i = 0; i < agent_count; i++) {
    agents[i].queues = 0;
    for (int k = 0; k <= MAX_ENGINES; k++) {
      struct engine *engine = &agents[i].engine[k];
      pthread_mutex_lock(&engine->lock);
      engine->held = engine->has_queue = engine->lost = false;
      pthread_cond_broadcast(&engine->changed);
      while (engine->first) pthread_cond_wait(&engine->changed, &engine->lock);
      pthread_mutex_unlock(&engine->lock);
    }
  }
}
