/* lane_flight_seal.c - what a chunk sends and gets, encrypted: where, and by whom. See lane_flight.h and wire_seal.h
 *
 * It is done in the jobs that compute, and takes no memory of its own. What lies in an area is encrypted where it is.
 * What would be sent from a trainer's memory goes, encrypted, to an area that such a chunk has no other use for:
 *   a partial result that is a rank's input     to `partials`
 *   a result that no codec encodes              to `sum`; and one that comes in waits in `results`
 */
#include "clock.h"
#include "lane_flight.h"

static gwd_cipher_t *cipher_of(const gwd_wire_flight_t *flight) {
    return flight->op->group->wire->cipher;
}

static uint64_t place(const gwd_wire_flight_t *flight, const gwd_shard_t *shard) {
    return shard->first * flight->partial_bytes;
}

gwd_load_t gwd_flight_part_out(const gwd_wire_flight_t *flight, const gwd_shard_t *shard) {
    if (!cipher_of(flight) || (gwd_code_is_coded(flight) && !shard->part_out.raw))
        return gwd_code_part_out(flight, shard);
    return (gwd_load_t){flight->partials + place(flight, shard), shard->count * flight->partial_bytes};
}

gwd_load_t gwd_flight_result_out(const gwd_wire_flight_t *flight, bool raw) {
    gwd_load_t load = gwd_code_result_out(flight, raw);

    if (cipher_of(flight) && !gwd_code_is_coded(flight))
        load.data = flight->sum;
    return load;
}

gwd_load_t gwd_flight_result_in(const gwd_wire_flight_t *flight, const gwd_shard_t *shard, bool raw) {
    gwd_load_t load = gwd_code_result_in(flight, shard, raw);

    if (cipher_of(flight) && !gwd_code_is_coded(flight))
        load.data = flight->results + place(flight, shard);
    return load;
}

void gwd_flight_seal_part(gwd_wire_flight_t *flight, gwd_shard_t *shard) {
    gwd_load_t to;
    const unsigned char *from;

    if (!cipher_of(flight) || shard->count == 0 || shard == gwd_flight_own(flight))
        return;
    if (shard->marks.encode_ns == 0)
        shard->marks.encode_ns = gwd_now_ns();
    from = (to = gwd_flight_part_out(flight, shard)).data;
    if (flight->mine && (!gwd_code_is_coded(flight) || shard->part_out.raw))
        from = flight->mine + place(flight, shard);
    gwd_cipher_seal(cipher_of(flight), from, to.bytes, to.data, &shard->part_out.sealed);
    shard->marks.end_ns = gwd_now_ns();
}

void gwd_flight_seal_result(gwd_wire_flight_t *flight) {
    gwd_shard_t *own = gwd_flight_own(flight);
    gwd_load_t from, to;

    if (!cipher_of(flight) || flight->at.n_out == 1)
        return;
    if (own->marks.encode_ns == 0)
        own->marks.encode_ns = gwd_now_ns();
    from = gwd_code_result_out(flight, own->result_out.raw);
    to = gwd_flight_result_out(flight, own->result_out.raw);
    gwd_cipher_seal(cipher_of(flight), from.data, from.bytes, to.data, &own->result_out.sealed);
    own->marks.end_ns = gwd_now_ns();
}

bool gwd_flight_open_parts(gwd_wire_flight_t *flight) {
    bool opened = true;

    gwd_flight_own(flight)->marks = (gwd_marks_t){.reduce_ns = gwd_now_ns()};
    for (uint32_t i = 0; cipher_of(flight) && flight->combines && i < gwd_flight_nodes(flight); i++) {
        gwd_transfer_t *part = &flight->shards[i].part_in;
        gwd_load_t load = gwd_code_part_in(flight, i, part->raw);

        if (part->step == GWD_STEP_NONE) /* of this node */
            continue;
        part->forged = !gwd_cipher_open(cipher_of(flight), i, load.data, load.bytes, &part->sealed, load.data);
        opened = opened && !part->forged;
    }
    return opened;
}

bool gwd_flight_open_result(gwd_wire_flight_t *flight, gwd_shard_t *shard) {
    gwd_transfer_t *result = &shard->result_in;
    gwd_load_t from = gwd_flight_result_in(flight, shard, result->raw),
               to = gwd_code_result_in(flight, shard, result->raw);

    shard->marks = (gwd_marks_t){.decode_ns = gwd_now_ns()};
    if (cipher_of(flight))
        result->forged =
            !gwd_cipher_open(cipher_of(flight), shard->node, from.data, from.bytes, &result->sealed, to.data);
    return !result->forged;
}

void gwd_flight_check_parts(const gwd_wire_flight_t *flight) {
    uint32_t n = gwd_flight_nodes(flight);

    for (uint32_t i = 0; i < n; i++)
        if (flight->shards[i].part_in.forged)
            gwd_wire_forged(flight->op->group, i);
}
