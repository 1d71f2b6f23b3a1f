/* What only the double has: faults on request, engines that can be held, and a journal of what was copied. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"

/* Kinds of fault; tests/amd/double_control.py has the same names. */
enum kind { NONE, SUBMIT_ERROR, ENGINE_ERROR, HANG, CORRUPT, DROP, NO_MEMORY, BUSY, KINDS };
static const char *const names[KINDS] = {"none", "submit-error", "engine-error", "hang",
                                         "corrupt", "drop", "no-memory", "busy"};

/* One fault at a time: it befalls the nth (from 0) event that it fits, and then is over; BUSY stays. -1 fits any. */
static struct {
  enum kind kind;
  int gpu, engine, nth;
} fault;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct entry {
  int32_t gpu, engine, outcome, epoch; /* engine -1: a kernel */
  uint64_t dst, src, nbytes, start, end;
};
static struct entry *journal;
static size_t entries, room;

static bool befalls(enum kind kind, int gpu, int engine) {
  pthread_mutex_lock(&lock);
  bool hit = fault.kind == kind && (fault.gpu < 0 || fault.gpu == gpu) && (fault.engine < 0 || fault.engine == engine);
  if (hit && kind != BUSY) {
    hit = !fault.nth--;
    if (hit) fault.kind = NONE;
  }
  pthread_mutex_unlock(&lock);
  return hit;
}

bool fault_at_submit(const struct engine *e) { return befalls(SUBMIT_ERROR, e->owner->number, e->number); }
bool fault_keeps_busy(const struct engine *e) { return befalls(BUSY, e->owner->number, e->number); }

/* Of GPUs only: a test that wants the host to be short of memory can ask for too much. */
bool fault_at_allocation(const struct agent *agent) {
  return agent->type == HSA_DEVICE_TYPE_GPU && befalls(NO_MEMORY, agent->number, -1);
}

enum outcome fault_of_copy(const struct engine *e) {
  static const struct {
    enum kind kind;
    enum outcome outcome;
  } possible[] = {{ENGINE_ERROR, FAILED}, {HANG, HUNG}, {CORRUPT, CORRUPTED}, {DROP, DROPPED}};
  for (size_t i = 0; i < sizeof possible / sizeof possible[0]; i++)
    if (befalls(possible[i].kind, e->owner->number, e->number)) return possible[i].outcome;
  return COPIED;
}

EXPORT void c3double_fault(int kind, int gpu, int engine, int nth) {
  pthread_mutex_lock(&lock);
  fault.kind = (enum kind)kind;
  fault.gpu = gpu;
  fault.engine = engine;
  fault.nth = nth;
  pthread_mutex_unlock(&lock);
}

/* C3_DOUBLE_FAULT="hang 0 4 3": kind, GPU, engine, which event; for programs that a test only starts. */
void fault_from_environment(void) {
  const char *text = getenv("C3_DOUBLE_FAULT");
  char name[20];
  int gpu = -1, engine = -1, nth = 0;
  if (!text || sscanf(text, "%19s %d %d %d", name, &gpu, &engine, &nth) < 1) return;
  for (int kind = 0; kind < KINDS; kind++)
    if (!strcmp(name, names[kind])) c3double_fault(kind, gpu, engine, nth);
}

EXPORT void c3double_hold(int gpu, int engine, bool on) {
  struct engine *held = &agents[gpu + 1].engine[engine];
  pthread_mutex_lock(&held->lock);
  held->held = on;
  pthread_cond_broadcast(&held->changed);
  pthread_mutex_unlock(&held->lock);
}

EXPORT void c3double_reset(void) {
  c3double_fault(NONE, 0, 0, 0);
  engines_reset();
  pthread_mutex_lock(&lock);
  entries = 0;
  pthread_mutex_unlock(&lock);
}

void journal_add(const struct engine *engine, const struct copy *copy, uint64_t start, uint64_t end, enum outcome how) {
  pthread_mutex_lock(&lock);
  if (entries == room) {
    struct entry *larger = realloc(journal, (room ? 2 * room : 1024) * sizeof *journal);
    if (larger) {
      journal = larger;
      room = room ? 2 * room : 1024;
    }
  }
  if (entries < room)
    journal[entries++] = (struct entry){
        engine->owner->number, engine->number == KERNEL ? -1 : engine->number, how, (int32_t)copy->epoch,
        (uintptr_t)copy->dst, (uintptr_t)copy->src, copy->nbytes, start, end};
  pthread_mutex_unlock(&lock);
}

/* How many copies there were since the last reset; the first `most` of them are written to `out`. */
EXPORT uint64_t c3double_journal(struct entry *out, uint64_t most) {
  pthread_mutex_lock(&lock);
  const size_t written = entries < most ? entries : most;
  if (out) memcpy(out, journal, written * sizeof *out);
  const uint64_t count = entries;
  pthread_mutex_unlock(&lock);
  return count;
}
