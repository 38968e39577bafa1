/* lane_flight_memory.c - memory of chunks under way between nodes. See lane_flight.h */
#include <stdlib.h>
#include <sys/mman.h>

#include "lane_flight.h"

enum { SHARD_MORE = GWD_CHUNK_BYTES_MIN }; /* that a shard takes beyond its part of a chunk: rounding, small chunks */

static bool make_flight(gwd_wire_flight_t *flight, uint32_t index, uint32_t n_nodes, uint32_t n_ranks,
                        uint64_t area_bytes) {
    flight->index = index;
    flight->shards = calloc(n_nodes, sizeof(*flight->shards));
    flight->in = calloc(n_ranks, sizeof(*flight->in));
    flight->out = calloc(n_ranks, sizeof(*flight->out));
    flight->memory =
        mmap(NULL, GWD_FLIGHT_AREAS * area_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (flight->memory == MAP_FAILED)
        flight->memory = NULL;
    if (!flight->shards || !flight->in || !flight->out || !flight->memory)
        return false;
    flight->area_bytes = area_bytes;
    flight->partials = flight->memory;
    flight->parts = flight->partials + area_bytes;
    flight->codes = flight->parts + area_bytes;
    flight->sum = flight->codes + area_bytes;
    flight->results = flight->sum + area_bytes;
    for (uint32_t i = 0; i < n_nodes; i++) {
        gwd_shard_t *shard = &flight->shards[i];

        shard->flight = flight;
        shard->node = i;
    }
    return true;
}

static uint64_t area_bytes_of(uint64_t chunk_bytes, uint32_t n_nodes) {
    return (chunk_bytes + (n_nodes + 1) * (uint64_t)SHARD_MORE + 4095) / 4096 * 4096;
}

uint64_t gwd_lane_flight_bytes(const gwd_plan_t *plan, uint32_t n_nodes, uint32_t n_local) {
    uint64_t each = GWD_FLIGHT_AREAS * area_bytes_of(plan->wire_chunk_bytes, n_nodes);

    each += sizeof(gwd_wire_flight_t) + n_nodes * sizeof(gwd_shard_t) + 2 * (uint64_t)n_local * sizeof(void *);
    return plan->wire_window * each;
}

bool gwd_flights_make(gwd_lane_group_t *group) {
    struct gwd_wire_group *wire = group->wire;
    uint64_t bytes = area_bytes_of(wire->chunk_bytes, wire->map->n_nodes);

    wire->flights = calloc(wire->window, sizeof(*wire->flights));
    for (uint32_t i = 0; wire->flights && i < wire->window; i++)
        if (!make_flight(&wire->flights[i], group->rail * wire->window + i, wire->map->n_nodes, group->nranks, bytes))
            return false;
    return wire->flights != NULL;
}

void gwd_wire_free_flights(struct gwd_wire_group *wire) {
    for (uint32_t i = 0; wire->flights && i < wire->window; i++) {
        gwd_wire_flight_t *flight = &wire->flights[i];

        if (flight->memory)
            (void)munmap(flight->memory, GWD_FLIGHT_AREAS * flight->area_bytes); /* cannot fail: it was mapped so */
        free(flight->shards);
        free(flight->in);
        free(flight->out);
    }
    free(wire->flights);
}
