/* The ioctls of /dev/kfd that ROCr makes: versions and clocks, memory and who may touch it, queues. */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { INTERFACE_MAJOR = 1, INTERFACE_MINOR = 18, DOORBELL_NBYTES = 8192 };

static int fails(int error) {
    errno = error;
    return -1;
}

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

uint64_t driver_ticks(void) { return nanoseconds(CLOCK_MONOTONIC_RAW) / 10; }

bool driver_traces(void) { return getenv("C3_MODEL_TRACE") != NULL; }

/* --- Memory ------------------------------------------------------------------------------------------------------ */

/* A block the runtime asked for. The runtime maps the model's file at `address` itself; the engines use a view of
 * their own, so that a range which a GPU may not touch stays out of its reach however the process has mapped it. */
struct block {
    uint64_t address, nbytes, offset, mapped; /* mapped: bit k, GPU k may touch it */
    char *view;
    bool owns_view;
    struct block *next;
};

static struct block *blocks;
static uint64_t file_end = 1 << 21;
static uint64_t doorbells[MOST_GPUS]; /* offset of each GPU's doorbell page, 0: not made yet */
static pthread_mutex_t memory = PTHREAD_MUTEX_INITIALIZER;

static uint64_t file_space(uint64_t nbytes, uint64_t alignment) {
    uint64_t offset = (file_end + alignment - 1) & ~(alignment - 1);
    file_end = offset + nbytes;
    return ftruncate(model_file(), file_end) ? 0 : offset;
}

static uint64_t doorbell_page(unsigned gpu) {
    if (!doorbells[gpu]) doorbells[gpu] = file_space(DOORBELL_NBYTES, DOORBELL_NBYTES);
    return doorbells[gpu];
}

static bool is_gpu(uint32_t gpu_id) { return gpu_id >= FIRST_GPU_ID && gpu_id < FIRST_GPU_ID + MOST_GPUS; }

static int allocate(struct kfd_ioctl_alloc_memory_of_gpu_args *a) {
    struct block *block = is_gpu(a->gpu_id) ? calloc(1, sizeof *block) : NULL;
    if (!block) return fails(EINVAL);
    block->address = a->va_addr;
    block->nbytes = a->size;
    pthread_mutex_lock(&memory);
    if (a->flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) { /* the process's own memory */
        block->view = (char *)(a->mmap_offset ? a->mmap_offset : a->va_addr);
    } else if (a->flags & KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL) { /* written by the runtime, read by nobody: we poll rings */
        a->mmap_offset = doorbell_page(a->gpu_id - FIRST_GPU_ID);
    } else {
        block->offset = a->mmap_offset = file_space(a->size, 1 << 21);
        block->view = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, model_file(), block->offset);
        block->owns_view = true;
        if (!block->offset || block->view == MAP_FAILED) {
            pthread_mutex_unlock(&memory);
            free(block);
            return fails(ENOMEM);
        }
    }
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&memory);
    a->handle = (uint64_t)block;
    return 0;
}

static int release(struct kfd_ioctl_free_memory_of_gpu_args *a) {
    pthread_mutex_lock(&memory);
    struct block **link = &blocks;
    while (*link && *link != (struct block *)a->handle) link = &(*link)->next;
    struct block *block = *link;
    if (block) *link = block->next;
    pthread_mutex_unlock(&memory);
    if (!block) return fails(EINVAL);
    if (block->owns_view) {
        munmap(block->view, block->nbytes);
        fallocate(model_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block->offset, block->nbytes);
    }
    free(block);
    return 0;
}

static void map(uint64_t handle, uint64_t gpu_ids, uint32_t count, bool on) {
    struct block *block = (struct block *)handle;
    pthread_mutex_lock(&memory);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bit = 1ull << (((const uint32_t *)gpu_ids)[i] - FIRST_GPU_ID);
        block->mapped = on ? block->mapped | bit : block->mapped & ~bit;
    }
    pthread_mutex_unlock(&memory);
}

/* The engine's pointer to an address, and how many bytes go on from there in the same block; blocks may be adjacent. */
static char *translate(uint32_t gpu_id, uint64_t address, uint64_t *nbytes) {
    char *found = NULL;
    pthread_mutex_lock(&memory);
    for (const struct block *b = blocks; b; b = b->next)
        if (b->view && address >= b->address && address - b->address < b->nbytes) {
            if (!(b->mapped >> (gpu_id - FIRST_GPU_ID) & 1)) break;
            uint64_t left = b->address + b->nbytes - address;
            if (*nbytes > left) *nbytes = left;
            found = b->view + (address - b->address);
            break;
        }
    pthread_mutex_unlock(&memory);
    return found;
}

bool driver_touch(uint32_t gpu_id, uint64_t address, uint64_t nbytes, piece_work work, void *context, uint64_t *bad) {
    while (nbytes) {
        uint64_t piece = nbytes;
        char *pointer = translate(gpu_id, address, &piece);
        if (!pointer) {
            *bad = address;
            return false;
        }
        work(pointer, piece, context);
        address += piece;
        nbytes -= piece;
    }
    return true;
}

void *driver_word(uint32_t gpu_id, uint64_t address) {
    uint64_t nbytes = 8;
    return translate(gpu_id, address, &nbytes);
}

/* --- The rest ---------------------------------------------------------------------------------------------------- */

static int create_queue(struct kfd_ioctl_create_queue_args *a) {
    if (!is_gpu(a->gpu_id)) return fails(EINVAL);
    int index = engines_create(a);
    if (driver_traces())
        fprintf(stderr, "[model] GPU %u: queue of type %u: %s\n", a->gpu_id - FIRST_GPU_ID, a->queue_type,
                index < 0 ? "none left" : "made");
    if (index < 0) return fails(ENOMEM);
    pthread_mutex_lock(&memory);
    a->doorbell_offset = doorbell_page(a->gpu_id - FIRST_GPU_ID) + 8 * (index % (DOORBELL_NBYTES / 8));
    pthread_mutex_unlock(&memory);
    a->queue_id = index + 1;
    return 0;
}

static int apertures(struct kfd_ioctl_get_process_apertures_new_args *a) {
    struct kfd_process_device_apertures *out = (void *)a->kfd_process_device_apertures_ptr;
    const char *gpus = getenv("C3_MODEL_GPUS");
    uint32_t count = gpus ? atoi(gpus) : 0;
    if (count > MOST_GPUS) return fails(EINVAL);
    if (a->num_of_nodes < count) count = a->num_of_nodes;
    for (uint32_t i = 0; i < count; i++)
        out[i] = (struct kfd_process_device_apertures){
            .gpu_id = FIRST_GPU_ID + i,
            .lds_base = 1ull << 48, .lds_limit = (1ull << 48) + UINT32_MAX,
            .scratch_base = 2ull << 48, .scratch_limit = (2ull << 48) + UINT32_MAX,
            .gpuvm_base = 1 << 16, .gpuvm_limit = (1ull << 47) - 1,
        };
    a->num_of_nodes = count;
    return 0;
}

static int clocks(struct kfd_ioctl_get_clock_counters_args *a) {
    a->gpu_clock_counter = driver_ticks();
    a->cpu_clock_counter = nanoseconds(CLOCK_MONOTONIC_RAW);
    a->system_clock_counter = nanoseconds(CLOCK_BOOTTIME);
    a->system_clock_freq = 1000000000;
    return 0;
}

#define CALL(name) case _IOC_NR(AMDKFD_IOC_##name):

int driver_ioctl(unsigned nr, void *argument) {
    if (driver_traces() && nr != _IOC_NR(AMDKFD_IOC_WAIT_EVENTS) && nr != _IOC_NR(AMDKFD_IOC_GET_CLOCK_COUNTERS))
        fprintf(stderr, "[model] ioctl 0x%02x\n", nr);
    switch (nr) {
    CALL(GET_VERSION)
        *(struct kfd_ioctl_get_version_args *)argument =
            (struct kfd_ioctl_get_version_args){.major_version = INTERFACE_MAJOR, .minor_version = INTERFACE_MINOR};
        return 0;
    CALL(GET_PROCESS_APERTURES_NEW) return apertures(argument);
    CALL(GET_CLOCK_COUNTERS) return clocks(argument);
    CALL(GET_TILE_CONFIG) {
        struct kfd_ioctl_get_tile_config_args *a = argument;
        a->num_tile_configs = a->num_macro_tile_configs = 0;
        return 0;
    }
    CALL(AVAILABLE_MEMORY)
        ((struct kfd_ioctl_get_available_memory_args *)argument)->available = 190ull << 30;
        return 0;
    CALL(SET_XNACK_MODE)
        ((struct kfd_ioctl_set_xnack_mode_args *)argument)->xnack_enabled = 0;
        return 0;

    CALL(ALLOC_MEMORY_OF_GPU) return allocate(argument);
    CALL(FREE_MEMORY_OF_GPU) return release(argument);
    CALL(MAP_MEMORY_TO_GPU) {
        struct kfd_ioctl_map_memory_to_gpu_args *a = argument;
        map(a->handle, a->device_ids_array_ptr, a->n_devices, true);
        a->n_success = a->n_devices;
        return 0;
    }
    CALL(UNMAP_MEMORY_FROM_GPU) {
        struct kfd_ioctl_unmap_memory_from_gpu_args *a = argument;
        map(a->handle, a->device_ids_array_ptr, a->n_devices, false);
        a->n_success = a->n_devices;
        return 0;
    }

    CALL(CREATE_EVENT) return events_create(argument) ? 0 : fails(ENOSPC);
    CALL(DESTROY_EVENT)
        return events_destroy(((struct kfd_ioctl_destroy_event_args *)argument)->event_id) ? 0 : fails(EINVAL);
    CALL(SET_EVENT)
        events_set(((struct kfd_ioctl_set_event_args *)argument)->event_id);
        return 0;
    CALL(RESET_EVENT)
        return events_reset(((struct kfd_ioctl_reset_event_args *)argument)->event_id) ? 0 : fails(EINVAL);
    CALL(WAIT_EVENTS)
        events_wait(argument);
        return 0;

    CALL(CREATE_QUEUE) return create_queue(argument);
    CALL(DESTROY_QUEUE)
        return engines_destroy(((struct kfd_ioctl_destroy_queue_args *)argument)->queue_id - 1) ? 0 : fails(EINVAL);

    CALL(UPDATE_QUEUE) CALL(SET_MEMORY_POLICY) CALL(SET_SCRATCH_BACKING_VA) CALL(SET_TRAP_HANDLER) CALL(ACQUIRE_VM)
        return 0; /* nothing in the model depends on these */
    }
    fprintf(stderr, "[model] the runtime made ioctl 0x%02x, which is not modelled\n", nr);
    return fails(ENOTTY);
}
