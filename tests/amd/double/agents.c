/* Who is there: initialisation, agents and what they tell of themselves and of their memory pools. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double.h"

struct settings settings;
struct agent agents[MAX_GPUS + 1]; /* the CPU first */
int agent_count;
_Atomic int initialised;
static pid_t owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t ticks(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * TICKS_PER_S + (uint64_t)now.tv_nsec / (1000000000ull / TICKS_PER_S);
}

/* After fork() the library's threads are gone and the driver's file belongs to the parent. */
bool of_this_process(void) { return owner == getpid(); }

struct agent *agent_of(hsa_agent_t handle) {
  for (int i = 0; i < agent_count; i++)
    if ((uintptr_t)&agents[i] == handle.handle) return &agents[i];
  return NULL;
}

static int number_from(const char *variable, int otherwise) {
  const char *text = getenv(variable);
  return text && *text ? atoi(text) : otherwise;
}

static void set_pools(struct agent *agent) {
  const uint32_t fine = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
  const uint32_t coarse = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
  const uint32_t arguments = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT;
  const bool gpu = agent->type == HSA_DEVICE_TYPE_GPU;
  const size_t nbytes = (gpu ? 192ull : 64ull) << 30;
  agent->pools = 3;
  if (gpu) {
    agent->pool[0] = (struct pool){agent, coarse, HSA_AMD_SEGMENT_GLOBAL, nbytes, 0};
    agent->pool[1] = (struct pool){agent, fine, HSA_AMD_SEGMENT_GLOBAL, nbytes, 0};
    agent->pool[2] = (struct pool){agent, 0, HSA_AMD_SEGMENT_GROUP, 64 << 10, 0};
  } else { /* the one for kernel arguments first: who takes just any fine-grained pool is found out */
    agent->pool[0] = (struct pool){agent, fine | arguments, HSA_AMD_SEGMENT_GLOBAL, nbytes, 0};
    agent->pool[1] = (struct pool){agent, fine, HSA_AMD_SEGMENT_GLOBAL, nbytes, 0};
    agent->pool[2] = (struct pool){agent, coarse, HSA_AMD_SEGMENT_GLOBAL, nbytes, 0};
  }
}

static void set_up(void) {
  settings = (struct settings){
      .gpus = number_from("C3_DOUBLE_GPUS", 8),
      .host_engines = number_from("C3_DOUBLE_HOST_ENGINES", 2),
      .peer_engines = number_from("C3_DOUBLE_PEER_ENGINES", 14),
      .queue_copies = number_from("C3_DOUBLE_QUEUE_COPIES", 6720),
      .sdma_queues = number_from("C3_DOUBLE_SDMA_QUEUES", 64),
      .driver = number_from("C3_DOUBLE_DRIVER", 1),
      .recommends = number_from("C3_DOUBLE_RECOMMENDS", 1),
      .sdma = number_from("HSA_ENABLE_SDMA", 1),
      .peer_sdma = number_from("HSA_ENABLE_PEER_SDMA", 1),
  };
  if (agent_count || settings.gpus > MAX_GPUS || settings.host_engines + settings.peer_engines > MAX_ENGINES) return;
  fault_from_environment();
  owner = getpid();
  for (int i = 0; i <= settings.gpus; i++) {
    struct agent *agent = &agents[i];
    agent->type = i ? HSA_DEVICE_TYPE_GPU : HSA_DEVICE_TYPE_CPU;
    agent->number = i ? i - 1 : 0;
    set_pools(agent);
    for (int k = 0; k <= MAX_ENGINES; k++) {
      agent->engine[k].owner = agent;
      agent->engine[k].number = k;
      pthread_mutex_init(&agent->engine[k].lock, NULL);
      pthread_cond_init(&agent->engine[k].changed, NULL);
    }
  }
  agent_count = settings.gpus + 1;
}

EXPORT hsa_status_t hsa_init(void) {
  pthread_mutex_lock(&lock);
  if (!initialised) set_up();
  const bool works = settings.driver && agent_count;
  if (works) initialised++;
  pthread_mutex_unlock(&lock);
  return works ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}

EXPORT hsa_status_t hsa_shut_down(void) {
  REQUIRE_INIT;
  pthread_mutex_lock(&lock);
  if (!--initialised) engines_reset();
  pthread_mutex_unlock(&lock);
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_status_t hsa_status_string(hsa_status_t status, const char **text) {
#define SAYS(name, words) \
  case name: \
    *text = #name ": " words; \
    return HSA_STATUS_SUCCESS
  if (!text) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  switch ((int)status) {
    SAYS(HSA_STATUS_SUCCESS, "all is well (says the double).");
    SAYS(HSA_STATUS_INFO_BREAK, "a callback ended the listing (says the double).");
    SAYS(HSA_STATUS_ERROR, "an error of no special kind (says the double).");
    SAYS(HSA_STATUS_ERROR_INVALID_ARGUMENT, "an argument is not what it should be (says the double).");
    SAYS(HSA_STATUS_ERROR_INVALID_ALLOCATION, "nothing was allocated there (says the double).");
    SAYS(HSA_STATUS_ERROR_INVALID_AGENT, "no such agent, or none that can do this (says the double).");
    SAYS(HSA_STATUS_ERROR_INVALID_SIGNAL, "no such signal (says the double).");
    SAYS(HSA_STATUS_ERROR_OUT_OF_RESOURCES, "memory, a queue or the driver is lacking (says the double).");
    SAYS(HSA_STATUS_ERROR_NOT_INITIALIZED, "the library was not initialised (says the double).");
    default: return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  }
}

EXPORT hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *value) {
  REQUIRE_INIT;
  switch ((int)attribute) {
    case HSA_SYSTEM_INFO_VERSION_MAJOR: *(uint16_t *)value = 1; break;
    case HSA_SYSTEM_INFO_VERSION_MINOR: *(uint16_t *)value = 1; break;
    case HSA_SYSTEM_INFO_TIMESTAMP: *(uint64_t *)value = ticks(); break;
    case HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY: *(uint64_t *)value = TICKS_PER_S; break;
    case HSA_AMD_SYSTEM_INFO_BUILD_VERSION: *(const char **)value = "double of AMD's runtime, no hardware"; break;
    case HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR: *(uint16_t *)value = HSA_AMD_INTERFACE_VERSION_MAJOR; break;
    case HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR: *(uint16_t *)value = HSA_AMD_INTERFACE_VERSION_MINOR; break;
    default: return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  }
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data) {
  REQUIRE_INIT;
  if (!callback) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < agent_count; i++) {
    hsa_status_t status = callback((hsa_agent_t){(uintptr_t)&agents[i]}, data);
    if (status != HSA_STATUS_SUCCESS) return status;
  }
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_status_t hsa_agent_get_info(hsa_agent_t handle, hsa_agent_info_t attribute, void *value) {
  REQUIRE_INIT;
  const struct agent *agent = agent_of(handle);
  if (!agent) return HSA_STATUS_ERROR_INVALID_AGENT;
  if (!value) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  const bool gpu = agent->type == HSA_DEVICE_TYPE_GPU;
  uint32_t *number = value;
  switch ((int)attribute) {
    case HSA_AGENT_INFO_NAME: strncpy(value, gpu ? "gfx942" : "CPU of the double", 64); break;
    case HSA_AMD_AGENT_INFO_PRODUCT_NAME: strncpy(value, gpu ? "Double of an MI300X" : "CPU of the double", 64); break;
    case HSA_AGENT_INFO_DEVICE: *number = agent->type; break;
    case HSA_AGENT_INFO_NODE: *number = (uint32_t)(agent - agents); break;
    case HSA_AMD_AGENT_INFO_BDFID: *number = gpu ? (uint32_t)(0x10 + agent->number) << 8 : 0; break;
    case HSA_AMD_AGENT_INFO_DOMAIN: *number = 0; break;
    case HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT: *number = gpu ? 304 : 64; break;
    case HSA_AMD_AGENT_INFO_NUM_XCC: *number = gpu ? 8 : 0; break;
    case HSA_AMD_AGENT_INFO_NUM_SDMA_ENG: *number = gpu ? (uint32_t)settings.host_engines : 0; break;
    case HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG: *number = gpu ? (uint32_t)settings.peer_engines : 0; break;
    default: return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  }
  return HSA_STATUS_SUCCESS;
}
