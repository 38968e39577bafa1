/* place.c - addresses for memory, and the files that lie behind it
 *
 * A range that was given back stays reserved and inaccessible, so that its use is noticed, and is the first to be
 * handed out again, so that the mistake of taking new memory for old can be tested.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fake.h"

enum { N_SPARE = 64 };

static const char label_magic[16] = "simulated CUDA";

static struct {
    void *at;
    size_t bytes;
} spare[N_SPARE]; /* the newest last */
static unsigned n_spare;
static atomic_uint serial;

size_t fake_round(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static void *take_spare(size_t bytes, size_t alignment) {
    for (unsigned i = n_spare; i-- > 0;) {
        void *at = spare[i].at;

        if (spare[i].bytes != bytes || (uintptr_t)at % alignment != 0)
            continue;
        n_spare--;
        memmove(&spare[i], &spare[i + 1], (n_spare - i) * sizeof(spare[0]));
        return at;
    }
    return NULL;
}

void *fake_place(size_t bytes, size_t alignment) {
    size_t slack = alignment > FAKE_PAGE_BYTES ? alignment : 0;
    void *at = take_spare(bytes, alignment);
    char *whole, *begin;

    if (at)
        return at;
    if (bytes + slack < bytes)
        return NULL;
    whole = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED)
        return NULL;
    begin = whole + (fake_round((uintptr_t)whole, alignment) - (uintptr_t)whole);
    if (begin > whole)
        munmap(whole, (size_t)(begin - whole));
    if (whole + slack > begin)
        munmap(begin + bytes, (size_t)(whole + slack - begin));
    return begin;
}

void fake_blank(void *at, size_t bytes) {
    if (mmap(at, bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
        fprintf(stderr, "simulated CUDA: cannot take memory away: %s\n", strerror(errno));
        abort();
    }
}

void fake_unplace(void *at, size_t bytes) {
    fake_blank(at, bytes);
    if (n_spare == N_SPARE) {
        munmap(spare[0].at, spare[0].bytes);
        n_spare--;
        memmove(&spare[0], &spare[1], n_spare * sizeof(spare[0]));
    }
    spare[n_spare].at = at;
    spare[n_spare++].bytes = bytes;
}

bool fake_place_is_spare(uintptr_t at) {
    for (unsigned i = 0; i < n_spare; i++)
        if (at >= (uintptr_t)spare[i].at && at - (uintptr_t)spare[i].at < spare[i].bytes)
            return true;
    return false;
}

bool fake_back(void *at, size_t bytes, int fd, off_t offset, int protection) {
    return mmap(at, bytes, protection, MAP_FIXED | MAP_SHARED, fd, offset) != MAP_FAILED;
}

int fake_dup(int fd) {
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

int fake_memfd(const struct fake_label *label) {
    struct fake_label whole = *label;
    int fd = memfd_create("simulated-gpu", MFD_CLOEXEC);

    if (fd < 0)
        return -1;
    memcpy(whole.magic, label_magic, sizeof(whole.magic));
    if (ftruncate(fd, (off_t)(label->bytes + sizeof(whole))) != 0 ||
        pwrite(fd, &whole, sizeof(whole), (off_t)label->bytes) != (ssize_t)sizeof(whole)) {
        close(fd);
        return -1;
    }
    return fd;
}

bool fake_memfd_label(int fd, struct fake_label *label_out) {
    struct stat state;
    off_t at;

    if (fstat(fd, &state) != 0 || !S_ISREG(state.st_mode) || state.st_size < (off_t)sizeof(*label_out))
        return false;
    at = state.st_size - (off_t)sizeof(*label_out);
    return pread(fd, label_out, sizeof(*label_out), at) == (ssize_t)sizeof(*label_out) &&
           memcmp(label_out->magic, label_magic, sizeof(label_magic)) == 0 && label_out->bytes == (uint64_t)at;
}

static void path_of(const char *name, char path[static FAKE_PATH_BYTES]) {
    snprintf(path, FAKE_PATH_BYTES, "%.400s/%.*s", fake.folder, FAKE_NAME_BYTES, name);
}

/* A file of tmpfs takes its pages when they are touched; too late to say that there are none. */
static bool has_room(int fd, size_t bytes) {
    struct statvfs state;

    return fstatvfs(fd, &state) == 0 && (uint64_t)state.f_bavail * state.f_frsize >= bytes;
}

int fake_file_create(size_t bytes, char *name_out) {
    char path[FAKE_PATH_BYTES];
    int fd;

    snprintf(name_out, FAKE_NAME_BYTES, "gpu-%d-%u", (int)getpid(), atomic_fetch_add(&serial, 1) + 1);
    path_of(name_out, path);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        fprintf(stderr, "simulated CUDA: cannot make %s: %s\n", path, strerror(errno));
        return -1;
    }
    if (fchmod(fd, 0666) != 0 || ftruncate(fd, (off_t)bytes) != 0 || !has_room(fd, bytes)) {
        fprintf(stderr, "simulated CUDA: no room for %zu bytes in %s; set FAKE_CUDA_DIR\n", bytes, fake.folder);
        close(fd);
        unlink(path);
        return -1;
    }
    return fd;
}

/* The process that made a file, -1 for other files. */
static int maker_of(const char *name) {
    int process;
    unsigned number;
    char rest;

    return sscanf(name, "gpu-%d-%u%c", &process, &number, &rest) == 2 && process > 0 ? process : -1;
}

static bool is_alive(int process) {
    return kill(process, 0) == 0 || errno == EPERM;
}

/* As with the real driver, memory dies with its process unless somebody has it open. */
int fake_file_open(const char *name) {
    char path[FAKE_PATH_BYTES];
    int process = maker_of(name);

    if (process < 0 || !is_alive(process))
        return -1;
    path_of(name, path);
    return open(path, O_RDWR | O_CLOEXEC);
}

void fake_file_remove(const char *name) {
    char path[FAKE_PATH_BYTES];

    path_of(name, path);
    unlink(path);
}

static void remove_files(bool own) {
    DIR *folder = opendir(fake.folder);
    const struct dirent *entry;

    if (!folder)
        return;
    while ((entry = readdir(folder)) != NULL) {
        int process = maker_of(entry->d_name);

        if (process > 0 && (own ? process == (int)getpid() : process != (int)getpid() && !is_alive(process)))
            fake_file_remove(entry->d_name);
    }
    closedir(folder);
}

void fake_file_sweep(void) {
    remove_files(false);
}

void fake_file_remove_own(void) {
    remove_files(true);
}
