/* Memory: pools, buffers, and which agents may touch them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "double.h"

#define PAGE 4096ull
#define INVALID_POOL ((hsa_status_t)HSA_STATUS_ERROR_INVALID_MEMORY_POOL) /* of an enum of its own */
#define STALE 0xA5 /* memory comes with somebody else's bytes */
#define STALE_NBYTES (64ull << 10)

struct block {
  struct block *next;
  char *start;
  size_t nbytes, used;
  struct pool *pool;
  uint32_t access; /* bit i: agents[i] may touch it */
  int buffers;
};

struct buffer {
  struct buffer *next;
  char *start;
  size_t nbytes;
  struct block *block;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static struct buffer *buffers;

uint32_t agent_bit(const struct agent *agent) { return 1u << (agent - agents); }

static struct pool *pool_of(hsa_amd_memory_pool_t handle) {
  for (int i = 0; i < agent_count; i++)
    for (int k = 0; k < agents[i].pools; k++)
      if ((uintptr_t)&agents[i].pool[k] == handle.handle) return &agents[i].pool[k];
  return NULL;
}

static struct block *new_block(struct pool *pool, size_t nbytes) {
  if (pool->segment != HSA_AMD_SEGMENT_GLOBAL || nbytes > pool->nbytes - pool->used) return NULL;
  char *start = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct block *block = start == MAP_FAILED ? NULL : malloc(sizeof *block);
  if (!block) return NULL;
  memset(start, STALE, nbytes < STALE_NBYTES ? nbytes : STALE_NBYTES);
  *block = (struct block){blocks, start, nbytes, 0, pool, agent_bit(pool->owner), 0};
  pool->used += nbytes;
  return blocks = block;
}

/* Small buffers of a GPU come from a block that has room, as ROCr has it; all others have a block of their own. */
static struct block *block_for(struct pool *pool, size_t nbytes) {
  if (pool->owner->type != HSA_DEVICE_TYPE_GPU || nbytes >= BLOCK_NBYTES) return new_block(pool, nbytes);
  for (struct block *block = blocks; block; block = block->next)
    if (block->pool == pool && block->nbytes == BLOCK_NBYTES && BLOCK_NBYTES - block->used >= nbytes) return block;
  return new_block(pool, BLOCK_NBYTES);
}

EXPORT hsa_status_t hsa_amd_memory_pool_allocate(hsa_amd_memory_pool_t handle, size_t nbytes, uint32_t flags,
                                                 void **address) {
  (void)flags;
  REQUIRE_INIT;
  struct pool *pool = pool_of(handle);
  if (!pool) return INVALID_POOL;
  if (!nbytes || !address) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  if (!of_this_process() || fault_at_allocation(pool->owner)) return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
  if (nbytes > pool->nbytes) return HSA_STATUS_ERROR_INVALID_ALLOCATION;
  nbytes = (nbytes + PAGE - 1) / PAGE * PAGE;
  pthread_mutex_lock(&lock);
  struct block *block = block_for(pool, nbytes);
  struct buffer *buffer = block ? malloc(sizeof *buffer) : NULL;
  if (buffer) {
    *buffer = (struct buffer){buffers, block->start + block->used, nbytes, block};
    buffers = buffer;
    block->used += nbytes;
    block->buffers++;
    *address = buffer->start;
  }
  pthread_mutex_unlock(&lock);
  return buffer ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}

static void drop(struct block *block) {
  struct block **link = &blocks;
  while (*link != block) link = &(*link)->next;
  *link = block->next;
  block->pool->used -= block->nbytes;
  munmap(block->start, block->nbytes);
  free(block);
}

EXPORT hsa_status_t hsa_amd_memory_pool_free(void *address) {
  REQUIRE_INIT;
  if (!address) return HSA_STATUS_SUCCESS;
  pthread_mutex_lock(&lock);
  struct buffer **link = &buffers;
  while (*link && (*link)->start != address) link = &(*link)->next;
  struct buffer *buffer = *link;
  if (buffer) {
    *link = buffer->next;
    if (!--buffer->block->buffers) drop(buffer->block);
    free(buffer);
  }
  pthread_mutex_unlock(&lock);
  return buffer ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_INVALID_ALLOCATION;
}

static struct buffer *buffer_with(const char *address, size_t nbytes) {
  for (struct buffer *buffer = buffers; buffer; buffer = buffer->next)
    if (address >= buffer->start && address + nbytes <= buffer->start + buffer->nbytes) return buffer;
  return NULL;
}

bool may_touch(const struct agent *agent, const void *address, size_t nbytes) {
  pthread_mutex_lock(&lock);
  const struct buffer *buffer = buffer_with(address, nbytes);
  const bool may = buffer && buffer->block->access & agent_bit(agent);
  pthread_mutex_unlock(&lock);
  return may;
}

/* The list replaces the earlier one and the owner stays; in a shared block nothing is ever taken away. */
EXPORT hsa_status_t hsa_amd_agents_allow_access(uint32_t count, const hsa_agent_t *list, const uint32_t *flags,
                                                const void *address) {
  REQUIRE_INIT;
  if (!count || !list || flags || !address) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  uint32_t access = 0;
  for (uint32_t i = 0; i < count; i++) {
    const struct agent *agent = agent_of(list[i]);
    if (!agent) return HSA_STATUS_ERROR_INVALID_AGENT;
    access |= agent_bit(agent);
  }
  pthread_mutex_lock(&lock);
  struct buffer *buffer = buffer_with(address, 1);
  if (buffer && buffer->start != address) buffer = NULL;
  if (buffer) {
    struct block *block = buffer->block;
    const bool shared = block->pool->owner->type == HSA_DEVICE_TYPE_GPU && block->nbytes == BLOCK_NBYTES &&
                        buffer->nbytes < BLOCK_NBYTES;
    block->access = access | agent_bit(block->pool->owner) | (shared ? block->access : 0);
  }
  pthread_mutex_unlock(&lock);
  return buffer ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR;
}

EXPORT hsa_status_t hsa_amd_agent_iterate_memory_pools(hsa_agent_t handle,
                                                       hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *),
                                                       void *data) {
  REQUIRE_INIT;
  struct agent *agent = agent_of(handle);
  if (!agent) return HSA_STATUS_ERROR_INVALID_AGENT;
  if (!callback) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  for (int k = 0; k < agent->pools; k++) {
    hsa_status_t status = callback((hsa_amd_memory_pool_t){(uintptr_t)&agent->pool[k]}, data);
    if (status != HSA_STATUS_SUCCESS) return status;
  }
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t handle, hsa_amd_memory_pool_info_t attribute,
                                                 void *value) {
  REQUIRE_INIT;
  const struct pool *pool = pool_of(handle);
  if (!pool) return INVALID_POOL;
  switch ((int)attribute) {
    case HSA_AMD_MEMORY_POOL_INFO_SEGMENT: *(hsa_amd_segment_t *)value = pool->segment; break;
    case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS:
      if (pool->segment != HSA_AMD_SEGMENT_GLOBAL) return HSA_STATUS_ERROR_INVALID_ARGUMENT;
      *(uint32_t *)value = pool->flags;
      break;
    case HSA_AMD_MEMORY_POOL_INFO_SIZE: *(size_t *)value = pool->nbytes; break;
    default: return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  }
  return HSA_STATUS_SUCCESS;
}

EXPORT hsa_status_t hsa_amd_agent_memory_pool_get_info(hsa_agent_t handle, hsa_amd_memory_pool_t which,
                                                       hsa_amd_agent_memory_pool_info_t attribute, void *value) {
  REQUIRE_INIT;
  const struct agent *agent = agent_of(handle);
  const struct pool *pool = pool_of(which);
  if (!agent) return HSA_STATUS_ERROR_INVALID_AGENT;
  if (!pool) return INVALID_POOL;
  const bool own = pool->owner == agent;
  const bool peers = agent->type == HSA_DEVICE_TYPE_GPU && pool->owner->type == HSA_DEVICE_TYPE_GPU;
  switch ((int)attribute) {
    case HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS:
      *(uint32_t *)value =
          own ? HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT : HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT;
      break;
    case HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS: *(uint32_t *)value = own ? 0 : 1; break;
    case HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO:
      if (!own)
        *(hsa_amd_memory_pool_link_info_t *)value = (hsa_amd_memory_pool_link_info_t){
            .link_type = peers ? HSA_AMD_LINK_INFO_TYPE_XGMI : HSA_AMD_LINK_INFO_TYPE_PCIE, .numa_distance = 15};
      break;
    default: return HSA_STATUS_ERROR_INVALID_ARGUMENT;
  }
  return HSA_STATUS_SUCCESS;
}
