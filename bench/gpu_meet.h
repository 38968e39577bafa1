// gpu_meet.h - where the ranks of one peer meet: a page of memory that they share
//
// A barrier, and the number of operations after which all of them stop. Each wait ends after WAIT_S seconds.
#ifndef BENCH_GPU_MEET_H
#define BENCH_GPU_MEET_H

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "control.h"
#include "gpu_driver.h"

class Meet {
  public:
    static constexpr uint64_t NEVER = UINT64_MAX;

    // The file holds a page of zeros when the first rank opens it.
    Meet(const char *path, unsigned n_ranks, unsigned rank) : n_ranks(n_ranks), rank(rank) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        void *memory = fd < 0 ? MAP_FAILED : mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED)
            fail("%s: cannot be opened and mapped", path);
        close(fd);
        page = static_cast<Page *>(memory);
    }

    // Returns when all ranks have come here.
    void barrier() {
        uint32_t turn = page->turn.load();
        int64_t end = bench_now_ns() + WAIT_S * 1000000000;
        if (page->n_here.fetch_add(1) + 1 == n_ranks) {
            page->n_here.store(0);
            page->turn.store(turn + 1);
        }
        while (page->turn.load() == turn) {
            if (bench_now_ns() > end)
                fail("rank %u waited %d s for the others: one of them has ended or hangs", rank, (int)WAIT_S);
            usleep(20);
        }
    }

    // Calls `work` on one rank after the other: ranks may share a GPU.
    template <typename Work> void in_turn(Work work) {
        for (unsigned i = 0; i < n_ranks; i++) {
            if (i == rank)
                work();
            barrier();
        }
    }

    // All ranks begin to count operations.
    void begin() {
        if (rank == 0)
            page->last.store(NEVER);
        barrier();
    }

    // Rank 0 decides. It must leave room for what others may have submitted that it has not.
    void stop_after(uint64_t n_operations) { page->last.store(n_operations); }
    uint64_t stops_after() const { return page->last.load(); }

    const unsigned n_ranks, rank;

  private:
    static constexpr int64_t WAIT_S = 18;
    struct Page {
        std::atomic<uint32_t> n_here, turn;
        alignas(64) std::atomic<uint64_t> last;
    };
    Page *page = nullptr;
};

#endif
