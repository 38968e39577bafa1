/* stream.c - see stream.h */
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>

#include "bounce.h"
#include "error.h"

/* What the tables of the device write for a message. */
typedef struct words {
    char text[GW_DRIVER_TEXT_BYTES];
} words_t;

#define WORDS(words) (words).text, sizeof((words).text)

static gw_status_t pass_on(gw_status_t status, const words_t *words) {
    return status == GW_OK ? GW_OK : gw_fail(status, "%s", words->text);
}

/* ---- submitting ----------------------------------------------------------------------------------- */

static gw_status_t check_span(const gw_bucket_t *bucket, const gw_span_t *span, const char *name) {
    if (span->buffer == NULL)
        return GW_OK;
    const uint8_t *data = span->buffer->data + span->offset;
    if (gw_device_memory()->is_same(&span->buffer->export, data, span->bytes))
        return GW_OK;
    return gw_fail(GW_ERR_BUFFER_STALE, "bucket '%s': %s, %llu bytes at %p", bucket->name, name,
                   (unsigned long long)span->bytes, (const void *)data);
}

static gw_status_t check_memory(const gw_bucket_t *bucket) {
    const gw_span_t *send = &bucket->send, *recv = &bucket->recv;

    gw_status_t status = check_span(bucket, send, "send");
    if (status != GW_OK || (recv->buffer == send->buffer && recv->offset == send->offset && recv->bytes == send->bytes))
        return status;
    return check_span(bucket, recv, "recv");
}

static gw_status_t check_stream(gw_device_t *device, gw_queue_t queue) {
    words_t words;
    return pass_on(gw_device_streams()->check(device, queue, WORDS(words)), &words);
}

gw_status_t gw_stream_check(const gw_bucket_t *bucket, gw_queue_t queue) {
    gw_status_t status = check_stream(bucket->device, queue);
    return status != GW_OK || bucket->released ? status : check_memory(bucket);
}

/* The first operation of a group on a device makes the slots known to it, and the watchdog to the group. */
static gw_status_t add_pin(gw_group_t *group, gw_device_t *device, gw_pin_t **pin_out) {
    const gw_device_memory_t *memory = gw_device_memory();
    words_t words;

    gw_pin_t *pin = calloc(1, sizeof(*pin));
    if (pin == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "the record of a device");
    pin->device = device;
    gw_status_t status = memory->pin(device, group->slots, gw_arena_round(gw_slots_bytes(group->credits)),
                                     (void **)&pin->slots, WORDS(words));
    if (status != GW_OK) {
        status = gw_fail(status, "pinning the slots of a group: %s", words.text);
        goto err_pin;
    }
    status = group->pins == NULL ? gw_watchdog_add(group) : GW_OK;
    if (status != GW_OK) {
        memory->unpin(device, group->slots);
        goto err_pin;
    }
    pin->next = group->pins;
    group->pins = pin;
    *pin_out = pin;
    return GW_OK;

err_pin:
    free(pin);
    return status;
}

static gw_status_t know_slots(gw_bucket_t *bucket) {
    gw_pin_t *pin = bucket->group->pins;
    gw_status_t status = GW_OK;

    if (bucket->slots != NULL)
        return GW_OK;
    while (pin != NULL && pin->device != bucket->device)
        pin = pin->next;
    if (pin == NULL)
        status = add_pin(bucket->group, bucket->device, &pin);
    if (status == GW_OK)
        bucket->slots = pin->slots;
    return status;
}

/* A word of a slot, as the device sees it. */
static void *word_at(const gw_bucket_t *bucket, const _Atomic uint32_t *word) {
    return bucket->slots + ((const uint8_t *)word - (const uint8_t *)bucket->group->slots);
}

/* The arena must not be written before the last result has been copied from it. */
static gw_status_t copy_input(const gw_bucket_t *bucket, gw_queue_t queue, words_t *words) {
    const gw_device_streams_t *streams = gw_device_streams();
    const gw_bounce_t *bounce = bucket->bounce;
    const gw_span_t *send = &bucket->send;
    gw_status_t status = GW_OK;

    if (bounce->back_sequence != 0 && !bounce->back_ended)
        status = streams->event_await(queue, bounce->back, WORDS(*words));
    if (status == GW_OK && send->buffer != NULL)
        status = streams->copy(queue, bounce->address + bounce->send_offset, send->buffer->data + send->offset,
                               send->bytes, WORDS(*words));
    return status;
}

static gw_status_t enqueue_ready(gw_bucket_t *bucket, gw_queue_t queue, uint64_t sequence) {
    const gw_device_streams_t *streams = gw_device_streams();
    gw_slot_t *slot = gw_slots_at(bucket->group->slots, sequence, bucket->group->credits);
    gw_entered_t entered;
    words_t words;

    gw_status_t status = know_slots(bucket);
    if (status != GW_OK)
        return status;
    status = streams->enter(bucket->device, &entered, WORDS(words));
    if (status != GW_OK)
        return pass_on(status, &words);
    void *ready = word_at(bucket, &slot->ready);
    if (bucket->bounce == NULL) {
        status = streams->write_behind(bucket->device, queue, ready, (uint32_t)sequence, WORDS(words));
    } else {
        status = copy_input(bucket, queue, &words);
        if (status == GW_OK)
            status = streams->write_word(queue, ready, (uint32_t)sequence, WORDS(words));
    }
    streams->leave(&entered);
    return pass_on(status, &words);
}

gw_status_t gw_stream_ready(gw_bucket_t *bucket, gw_queue_t queue, uint64_t sequence) {
    const gw_device_streams_t *streams = gw_device_streams();

    streams->range_begin("submit", bucket->name, bucket->send.bytes);
    gw_status_t status = enqueue_ready(bucket, queue, sequence);
    streams->range_end();
    return status;
}

/* ---- bringing results back ------------------------------------------------------------------------ */

static bool has_way_back(const gw_bucket_t *bucket) {
    return bucket->bounce != NULL && bucket->recv.buffer != NULL;
}

/* Copies a result that is in the arena, as far as the stream knows. */
static gw_status_t copy_result(gw_bucket_t *bucket, uint64_t sequence, gw_queue_t queue, words_t *words) {
    const gw_device_streams_t *streams = gw_device_streams();
    gw_bounce_t *bounce = bucket->bounce;
    const gw_span_t *recv = &bucket->recv;

    gw_status_t status = streams->copy(queue, recv->buffer->data + recv->offset, bounce->address + bounce->recv_offset,
                                       recv->bytes, WORDS(*words));
    if (status == GW_OK)
        status = streams->event_record(bounce->back, queue, WORDS(*words));
    if (status != GW_OK) {
        bounce->failed = true;
        return status;
    }
    bounce->back_sequence = sequence;
    bounce->back_ended = false;
    return GW_OK;
}

/* Later operations of the bucket are submitted only after a stream waits for this one, so its copy has been enqueued;
 * by now the event may be that of a later one. Each begins by waiting for the copy before it. */
static bool is_overtaken(const gw_bucket_t *bucket) {
    const gw_group_t *group = bucket->group;
    uint64_t later = bucket->bounce->back_sequence;
    gw_slot_t *slot = gw_slots_at(group->slots, later, group->credits);

    return gw_slots_reached(atomic_load_explicit(&slot->ready, memory_order_acquire), later);
}

bool gw_stream_is_back(gw_bucket_t *bucket, uint64_t sequence, gw_status_t *status_io) {
    const gw_device_streams_t *streams = gw_device_streams();
    gw_bounce_t *bounce = bucket->bounce;
    gw_entered_t entered;
    words_t words;

    if (!has_way_back(bucket) || (bounce->back_sequence == sequence && bounce->back_ended) ||
        (bounce->back_sequence > sequence && is_overtaken(bucket)))
        return true;
    gw_status_t status = streams->enter(bucket->device, &entered, WORDS(words));
    if (status == GW_OK) {
        if (bounce->back_sequence < sequence)
            status = copy_result(bucket, sequence, streams->back(bucket->device), &words);
        if (status == GW_OK)
            status = streams->event_test(bounce->back, WORDS(words));
        streams->leave(&entered);
    }
    if (status == GW_IN_PROGRESS)
        return false;
    if (status == GW_OK) {
        bounce->back_ended = true;
    } else {
        bounce->failed = true;
        *status_io = GW_ERR_DEVICE;
        snprintf(bucket->group->device_text, sizeof(bucket->group->device_text), "%s", words.text);
    }
    return true;
}

bool gw_stream_has_passed(gw_group_t *group, uint64_t sequence) {
    gw_slot_t *slot = gw_slots_at(group->slots, sequence, group->credits);

    return gw_slots_reached(atomic_load_explicit(&slot->ready, memory_order_acquire), sequence) ||
           atomic_load_explicit(&group->slots->status, memory_order_relaxed) != GW_OK ||
           atomic_load_explicit(&group->gone, memory_order_relaxed);
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

/* Whoever comes first brings the result back. Of an operation whose bucket has been submitted since, and has come back,
 * there is no result any more: only its end. */
static gw_status_t enqueue_wait(gw_bucket_t *bucket, uint64_t sequence, gw_queue_t queue, words_t *words) {
    const gw_device_streams_t *streams = gw_device_streams();
    gw_slot_t *slot = gw_slots_at(bucket->group->slots, sequence, bucket->group->credits);
    bool copied = has_way_back(bucket);

    if (copied && bucket->bounce->back_sequence == sequence)
        return streams->event_await(queue, bucket->bounce->back, WORDS(*words));
    gw_status_t status = streams->await_word(queue, word_at(bucket, &slot->done), (uint32_t)sequence, WORDS(*words));
    if (status == GW_OK && copied && bucket->bounce->back_sequence < sequence)
        status = copy_result(bucket, sequence, queue, words);
    return status;
}

/* Then its result is there, whatever has become of the group since: no rank is told anything else of it. */
static bool has_ended_well(gw_group_t *group, const gw_record_t *record) {
    if (record->bucket == NULL)
        return record->status == GW_OK;
    if (!gw_group_has_ended(group, record->sequence))
        return false;
    gw_slot_t *slot = gw_slots_at(group->slots, record->sequence, group->credits);
    return atomic_load_explicit(&slot->status, memory_order_relaxed) == (uint32_t)GW_OK;
}

/* Has the stream wait, and then record the event, if there is one. */
static gw_status_t enqueue_all(gw_group_t *group, gw_record_t *record, gw_queue_t queue, gw_event_t *event) {
    const gw_device_streams_t *streams = gw_device_streams();
    gw_bucket_t *bucket = record->bucket;
    gw_entered_t entered;
    words_t words;

    if (atomic_load(&group->gone) && !has_ended_well(group, record)) /* see watchdog.c */
        return gw_group_status(group);
    gw_status_t status = streams->enter(record->device, &entered, WORDS(words));
    if (status != GW_OK)
        return pass_on(status, &words);
    if (bucket != NULL)
        status = enqueue_wait(bucket, record->sequence, queue, &words);
    if (status == GW_OK && event != NULL)
        status = streams->event_record(event, queue, WORDS(words));
    streams->leave(&entered);
    if (status == GW_OK && bucket != NULL && bucket->pending == record->sequence)
        bucket->awaited = true;
    return pass_on(status, &words);
}

static gw_status_t wait_and_record(gw_group_t *group, gw_record_t *record, gw_queue_t queue, gw_event_t *event) {
    const gw_device_streams_t *streams = gw_device_streams();
    const gw_bucket_t *bucket = record->bucket;

    streams->range_begin("wait", bucket != NULL ? bucket->name : "", bucket != NULL ? bucket->recv.bytes : 0);
    gw_status_t status = enqueue_all(group, record, queue, event);
    streams->range_end();
    return status;
}

gw_status_t gw_stream_await(gw_group_t *group, gw_record_t *record, gw_queue_t queue) {
    return wait_and_record(group, record, queue, NULL);
}

static gw_status_t record_event(gw_group_t *group, gw_record_t *record, gw_event_t *event) {
    const gw_device_streams_t *streams = gw_device_streams();
    const gw_bucket_t *bucket = record->bucket;
    gw_queue_t queue = bucket != NULL ? streams->side(record->device, bucket->desc.priority > 0)
                                      : streams->back(record->device); /* there is nothing to wait for */

    return wait_and_record(group, record, queue, event);
}

static gw_status_t check_and_await(gw_group_t *group, gw_record_t *record, gw_queue_t queue) {
    gw_status_t status = check_stream(record->device, queue);
    return status != GW_OK ? status : gw_stream_await(group, record, queue);
}

/* `event` NULL: on the stream. */
static gw_status_t wait_for_record(gw_group_t *group, gw_record_t *record, gw_queue_t queue, gw_event_t *event) {
    gw_status_t status = gw_group_status(group);
    if (status != GW_OK && !has_ended_well(group, record))
        return status;
    if (record->place == GW_PLACE_HOST)
        return gw_fail_advised(GW_ERR_UNSUPPORTED,
                               "operation %llu is on host memory, which no stream waits for; use gw_wait",
                               (unsigned long long)record->sequence);
    if (record->place != GW_PLACE_DEVICE)
        return GW_OK;
    return event != NULL ? record_event(group, record, event) : check_and_await(group, record, queue);
}

/* An event is to be recorded in any case, and which device it is of only the record knows. */
static gw_status_t recall(const gw_group_t *group, gw_op_t op, const gw_event_t *event) {
    gw_status_t status = gw_group_recall(group, op);
    if (status != GW_OK || event == NULL)
        return status;
    return gw_fail(GW_ERR_NOT_FOUND, "operation %llu has ended long ago: events can wait for the last %u",
                   (unsigned long long)op, group->credits);
}

static gw_status_t wait_for(gw_group_t *group, gw_op_t op, gw_queue_t queue, gw_event_t *event) {
    pthread_mutex_lock(&group->lock);
    gw_record_t *record = gw_group_record(group, op);
    bool is_known = op != 0 && record->sequence == op;
    gw_status_t status = is_known ? wait_for_record(group, record, queue, event) : recall(group, op, event);
    pthread_mutex_unlock(&group->lock);
    if (is_known || status == GW_OK)
        return status;
    gw_status_t failure = gw_group_status(group);
    return failure == GW_OK ? status : failure; /* what is not known may have been refused */
}

gw_status_t gw_stream_wait(gw_group_t *group, gw_op_t op, gw_queue_t queue) {
    gw_status_t status = gw_group_argument(group);
    return status != GW_OK ? status : wait_for(group, op, queue, NULL);
}

gw_status_t gw_event_record(gw_group_t *group, gw_op_t op, void *event) {
    gw_status_t status = gw_group_argument(group);
    if (status != GW_OK)
        return status;
    if (event == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "event is NULL");
    return wait_for(group, op, NULL, (gw_event_t *)event);
}

/* ---- the end of a group -------------------------------------------------------------------------------- */

void gw_stream_end_group(gw_group_t *group, bool forked) {
    const gw_pin_t *first = group->pins;

    if (first != NULL && !forked) {
        gw_watchdog_remove(group);
        gw_watchdog_free_waiting(group);
        for (const gw_pin_t *pin = group->pins; pin != NULL; pin = pin->next) {
            gw_device_memory()->drain(pin->device);
            first = pin;
        }
        gw_device_memory()->unpin(first->device, group->slots);
    }
    while (group->pins != NULL) {
        gw_pin_t *pin = group->pins;
        group->pins = pin->next;
        free(pin);
    }
}
