/* account.c - device memory in use, over all processes
 *
 * Each process that uses a device holds a record lock on one slot of a shared file, and the length of the lock is the
 * bytes that it uses. The kernel ends the lock with the process, however that ends, and tells others its length. The
 * memory of a peer that was imported counts where it was made.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

enum { N_SLOTS = 1 << 12, SLOT_BITS = 40 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static int slots[FAKE_DEVICES_MAX]; /* one more than its number, 0: none */
static size_t used[FAKE_DEVICES_MAX];

CUresult fake_account_open(void) {
    char path[FAKE_PATH_BYTES];

    snprintf(path, sizeof(path), "%.400s/memory", fake.folder);
    /* Without O_CREAT first: the kernel may refuse that for another user's file in a sticky folder. */
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) {
        file = open(path, O_RDWR | O_CLOEXEC | O_CREAT, 0666);
        if (file >= 0 && fchmod(file, 0666) != 0 && errno != EPERM)
            return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (file < 0) {
        fprintf(stderr, "simulated CUDA: cannot open %s: %s; set FAKE_CUDA_DIR\n", path, strerror(errno));
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    return CUDA_SUCCESS;
}

static off_t device_base(int device) {
    return (off_t)fake.physical[device] * N_SLOTS << SLOT_BITS;
}

static bool lock_bytes(int device, int slot, int type, size_t from, size_t bytes) {
    struct flock part = {.l_type = (short)type,
                         .l_whence = SEEK_SET,
                         .l_start = device_base(device) + ((off_t)slot << SLOT_BITS) + (off_t)from,
                         .l_len = (off_t)bytes};

    return fcntl(file, F_SETLK, &part) == 0;
}

static bool find_slot(int device) {
    for (int slot = 0; slot < N_SLOTS; slot++)
        if (lock_bytes(device, slot, F_WRLCK, 0, 1)) {
            slots[device] = slot + 1;
            return true;
        }
    return false;
}

/* The lock that the kernel names need not be the first of the part, so what lies around it is looked at too. */
static size_t locked_by_others(off_t at, off_t end) {
    struct flock part = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = end - at};

    if (at >= end || fcntl(file, F_GETLK, &part) != 0 || part.l_type == F_UNLCK)
        return 0;
    return (size_t)part.l_len + locked_by_others(at, part.l_start) + locked_by_others(part.l_start + part.l_len, end);
}

static size_t used_by_others(int device) {
    return locked_by_others(device_base(device), device_base(device) + ((off_t)N_SLOTS << SLOT_BITS));
}

CUresult fake_account_take(int device, size_t bytes) {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    pthread_mutex_lock(&lock);
    if (used_by_others(device) + used[device] + bytes <= FAKE_MEMORY_BYTES &&
        (slots[device] != 0 || find_slot(device)) &&
        lock_bytes(device, slots[device] - 1, F_WRLCK, used[device], bytes)) {
        used[device] += bytes;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void fake_account_give(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    used[device] -= bytes;
    if (!lock_bytes(device, slots[device] - 1, F_UNLCK, used[device], bytes))
        fprintf(stderr, "simulated CUDA: cannot give back memory: %s\n", strerror(errno));
    if (used[device] == 0)
        slots[device] = 0;
    pthread_mutex_unlock(&lock);
}

size_t fake_account_free_bytes(int device) {
    size_t sum;

    pthread_mutex_lock(&lock);
    sum = used_by_others(device) + used[device];
    pthread_mutex_unlock(&lock);
    return sum < FAKE_MEMORY_BYTES ? FAKE_MEMORY_BYTES - sum : 0;
}
