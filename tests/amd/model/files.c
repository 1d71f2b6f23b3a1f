/* Which files are ours. Everything else goes to the C library. */
#define _GNU_SOURCE
#include "model.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOPOLOGY "/sys/devices/virtual/kfd/kfd/topology"
#define NEXT(function) ((__typeof__(&function))dlsym(RTLD_NEXT, #function))

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int file = -1;
static struct stat file_is;

static void make_file(void) {
    file = memfd_create("c3-model", MFD_CLOEXEC);
    if (file < 0 || fstat(file, &file_is)) abort();
}

int model_file(void) {
    pthread_once(&once, make_file);
    return file;
}

/* Every descriptor that the runtime holds on the driver or a render node is a copy of that one file's. */
static bool is_ours(int fd) {
    struct stat is;
    return file >= 0 && fstat(fd, &is) == 0 && is.st_ino == file_is.st_ino && is.st_dev == file_is.st_dev;
}

static int another(void) { return fcntl(model_file(), F_DUPFD_CLOEXEC, 3); }

static bool is_device(const char *path) {
    return !strcmp(path, "/dev/kfd") || !strncmp(path, "/dev/dri/render", strlen("/dev/dri/render"));
}

/* The path to open instead of a path of the topology. */
static const char *served(const char *path, char buffer[PATH_MAX]) {
    const char *folder = getenv("C3_MODEL_TOPOLOGY");
    if (!folder || strncmp(path, TOPOLOGY, strlen(TOPOLOGY))) return path;
    snprintf(buffer, PATH_MAX, "%s%s", folder, path + strlen(TOPOLOGY));
    return buffer;
}

FILE *fopen(const char *path, const char *mode) {
    char buffer[PATH_MAX];
    return NEXT(fopen)(served(path, buffer), mode);
}

DIR *opendir(const char *path) {
    char buffer[PATH_MAX];
    return NEXT(opendir)(served(path, buffer));
}

#define OPEN(name)                                                  \
    int name(const char *path, int flags, ...) {                    \
        if (is_device(path)) return another();                      \
        char buffer[PATH_MAX];                                      \
        va_list rest;                                               \
        va_start(rest, flags);                                      \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
        va_end(rest);                                               \
        return NEXT(name)(served(path, buffer), flags, mode);       \
    }
OPEN(open)
OPEN(open64)

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (!is_ours(fd)) return NEXT(ioctl)(fd, request, argument);
    return driver_ioctl(_IOC_NR(request), argument);
}

/* The runtime asks libdrm for a render node and a name, no more; its handle here is a descriptor. */
int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, void **handle) {
    int *own = malloc(sizeof *own);
    if (!own) return -ENOMEM;
    (void)fd;
    *own = another();
    *major = 3;
    *minor = 60;
    *handle = own;
    return 0;
}

int amdgpu_device_deinitialize(void *handle) {
    close(*(int *)handle);
    free(handle);
    return 0;
}

int amdgpu_device_get_fd(void *handle) { return *(int *)handle; }

int amdgpu_query_gpu_info(void *handle, void *info) {
    (void)handle;
    memset(info, 0, 64);
    return 0;
}

const char *amdgpu_get_marketing_name(void *handle) {
    (void)handle;
    return "modelled gfx942, not a GPU";
}

int drmOpenRender(int minor) {
    (void)minor;
    return another();
}
