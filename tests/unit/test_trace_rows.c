/* test_trace_rows.c - gwctl trace: what a rank waited for, lines that do not overlap, and a document that is JSON */
#include "ctl/trace.h"

#include <stdlib.h>
#include <string.h>

#include "cunit_main.h"

static char name[] = "a \"quoted\" \\x1b name";
static char died[] = "GW_ERR_RANK_DIED";

static gwctl_event_t moment(gwctl_event_kind_t kind, uint64_t sequence, uint64_t time_ns, uint32_t index) {
    gwctl_event_t event = {.time_ns = time_ns, .sequence = sequence, .group = 3, .index = index, .kind = kind};
    if (kind == GWCTL_SUBMIT) {
        event.name = name;
        event.bytes = 4096;
        snprintf(event.codec, sizeof(event.codec), "int8");
    }
    if (kind == GWCTL_FAILED_OP)
        event.name = died;
    return event;
}

static gwctl_event_t work(gwctl_event_kind_t kind, uint64_t sequence, uint64_t time_ns, uint64_t duration_ns) {
    gwctl_event_t event = moment(kind, sequence, time_ns, 1);
    event.duration_ns = duration_ns;
    return event;
}

/* The document of some events, parsed; the caller deletes it. */
static cJSON *document_of(gwctl_event_t *items, size_t n, uint64_t lost, gwctl_rows_t *rows_out) {
    gwctl_events_t events = {.items = items, .n = n, .lost = lost};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    events.daemon = cJSON_Parse("{\"host\":\"h\\\"\",\"node\":\"0123456789\",\"pid\":7,\"version\":\"1\","
                                "\"monotonic_ns\":9000,\"realtime_ns\":1000009000}");
    CU_ASSERT_TRUE_FATAL(gwctl_rows_make(&events, rows_out));
    gwctl_trace_write(&events, rows_out, out);
    CU_ASSERT_EQUAL(fclose(out), 0);
    cJSON *document = cJSON_Parse(text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(document);
    free(text);
    cJSON_Delete(events.daemon);
    return document;
}

/* The bar of this name and row that begins then; NULL: there is none. */
static const cJSON *find(const cJSON *document, const char *what, double ts) {
    const cJSON *event;
    cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(document, "traceEvents")) {
        if (strcmp(gwctl_text(event, "ph"), "X") == 0 && strcmp(gwctl_text(event, "name"), what) == 0 &&
            gwctl_number(event, "ts") == ts)
            return event;
    }
    return NULL;
}

static void waits_are_told_apart(void) {
    /* In any order, as pages of several lanes come. */
    gwctl_event_t items[] = {moment(GWCTL_DONE, 1, 7000, 0),    moment(GWCTL_SUBMIT, 1, 1000, 0),
                             moment(GWCTL_MATCHED, 1, 3000, 1), moment(GWCTL_READY, 1, 3500, 0),
                             moment(GWCTL_SUBMIT, 1, 3000, 1),  moment(GWCTL_MET, 1, 5000, 0),
                             moment(GWCTL_REDUCED, 1, 6500, 0), work(GWCTL_SENT, 1, 5100, 400)};
    gwctl_rows_t rows;
    cJSON *document = document_of(items, sizeof(items) / sizeof(items[0]), 0, &rows);
    static const struct {
        const char *name;
        double ts, dur;
    } stages[] = {{"wait for ranks", 1, 2},
                  {"wait for inputs", 3, 0.5},
                  {"wait for nodes", 3.5, 1.5},
                  {"exchange", 5, 1.5},
                  {"done", 6.5, 0.5},
                  {"a \"quoted\" \\x1b name", 1, 6},
                  {"a \"quoted\" \\x1b name", 3, 4}};
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++) {
        const cJSON *bar = find(document, stages[i].name, stages[i].ts);
        CU_ASSERT_PTR_NOT_NULL_FATAL(bar);
        CU_ASSERT_EQUAL(gwctl_number(bar, "dur"), stages[i].dur);
    }
    CU_ASSERT_PTR_NULL(find(document, "wait for ranks", 3)); /* the late one waits for nobody */
    const cJSON *late = cJSON_GetObjectItemCaseSensitive(find(document, name, 3), "args");
    CU_ASSERT_EQUAL(gwctl_number(late, "late_us"), 2);
    CU_ASSERT_EQUAL(gwctl_number(late, "done_us"), 4);
    CU_ASSERT_EQUAL(gwctl_number(late, "last_rank"), 1);
    CU_ASSERT_STRING_EQUAL(gwctl_text(late, "codec"), "int8");
    CU_ASSERT_EQUAL(rows.n_rows, 3);
    const cJSON *other = cJSON_GetObjectItemCaseSensitive(document, "otherData");
    CU_ASSERT_EQUAL(gwctl_number(other, "realtime_ahead_us"), 1000000);
    gwctl_rows_free(&rows);
    cJSON_Delete(document);
}

static void bars_that_overlap_have_lines(void) {
    gwctl_event_t items[3 * 70];
    size_t n = 0;
    for (uint64_t op = 1; op <= 70; op++) { /* more at once than a row has lines */
        items[n++] = moment(GWCTL_SUBMIT, op, 1000 + op, 0);
        items[n++] = moment(GWCTL_DONE, op, 5000 + op, 0);
        items[n++] = work(GWCTL_REDUCE, op, 2000 + 10 * op, 10); /* one after the other */
    }
    gwctl_rows_t rows;
    cJSON *document = document_of(items, n, 0, &rows);
    CU_ASSERT_EQUAL_FATAL(rows.n_rows, 2);
    for (size_t i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(rows.rows[i].n_lines, rows.rows[i].class == GWCTL_ROW_RANK ? GWCTL_LINES_MAX : 1);
    for (size_t i = 0; i < rows.n_bars; i++)
        CU_ASSERT_TRUE(rows.bars[i].line < GWCTL_LINES_MAX);
    gwctl_rows_free(&rows);
    cJSON_Delete(document);
}

static void what_has_not_ended_lasts_until_now(void) {
    gwctl_event_t items[] = {moment(GWCTL_SUBMIT, 1, 1000, 0), moment(GWCTL_SUBMIT, 2, 2000, 0),
                             moment(GWCTL_FAILED_OP, 2, 4000, 0)};
    for (uint64_t lost = 0; lost < 2; lost++) {
        gwctl_rows_t rows;
        cJSON *document = document_of(items, 3, lost, &rows);
        const cJSON *open = find(document, name, 1), *failed = find(document, name, 2);
        CU_ASSERT_PTR_NOT_NULL_FATAL(open);
        CU_ASSERT_PTR_NOT_NULL_FATAL(failed);
        CU_ASSERT_EQUAL(gwctl_number(open, "dur"), lost ? 0 : 8); /* its end may be among what was lost */
        CU_ASSERT_FALSE(cJSON_HasObjectItem(cJSON_GetObjectItemCaseSensitive(open, "args"), "done_us"));
        CU_ASSERT_STRING_EQUAL(gwctl_text(cJSON_GetObjectItemCaseSensitive(failed, "args"), "status"), died);
        gwctl_rows_free(&rows);
        cJSON_Delete(document);
    }
}

static void nothing_is_a_document_too(void) {
    gwctl_rows_t rows;
    cJSON *document = document_of(NULL, 0, 0, &rows);
    CU_ASSERT_EQUAL(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(document, "traceEvents")), 0);
    gwctl_rows_free(&rows);
    cJSON_Delete(document);
}

int main(void) {
    static CU_TestInfo tests[] = {
        {"waits are told apart", waits_are_told_apart},
        {"bars that overlap have lines", bars_that_overlap_have_lines},
        {"what has not ended lasts until now", what_has_not_ended_lasts_until_now},
        {"nothing is a document, too", nothing_is_a_document_too},
        CU_TEST_INFO_NULL,
    };
    return cunit_run("trace_rows", tests);
}
