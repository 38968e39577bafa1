/* figures.c - what came of a training, as JSON for those who compare many. See run.h. */
#include "run.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

const char *const codec_name[CODECS] = {
    [GW_CODEC_DEFAULT] = "default", [GW_CODEC_NONE] = "none", [GW_CODEC_FP16] = "fp16", [GW_CODEC_BF16] = "bf16",
    [GW_CODEC_FP8] = "fp8",         [GW_CODEC_INT8] = "int8", [GW_CODEC_INT4] = "int4",
};

static void write_settings(FILE *out, const struct run *run) {
    fprintf(out,
            "{\"ranks\": %d, \"nodes\": %d, \"codec\": \"%s\", \"error_feedback\": %s, \"seed\": %" PRIu64
            ", \"epochs\": %d,\n \"bucket_elements\": [",
            RANKS, run->nodes, codec_name[run->codec], run->no_error_feedback ? "false" : "true", run->seed,
            run->epochs);
    for (int l = 0; l < LAYERS; l++)
        fprintf(out, "%s%zu", l ? ", " : "", mlp_parameter_count(l));
}

/* Hashes of all parameters after each epoch, a row an epoch, a column a rank. */
static void write_hashes(FILE *out, const struct results *results, int epochs) {
    for (int e = 0; e < epochs; e++)
        for (int r = 0; r < RANKS; r++)
            fprintf(out, "%s\"%016" PRIx64 "\"%s",
                    r   ? ", "
                    : e ? ",\n  ["
                        : "[",
                    results->epoch_hash[e][r], r == RANKS - 1 ? "]" : "");
}

/* Of each step the loss, and the time it took: means over the ranks. */
static void write_steps(FILE *out, const struct run *run) {
    for (int64_t s = 0; s < run->steps; s++)
        fprintf(out, "%s%.9g", s ? ", " : "", trained_loss(run, s));
    fputs("],\n \"step_us\": [", out);
    for (int64_t s = 0; s < run->steps; s++) {
        int64_t total_ns = 0;
        for (int r = 0; r < RANKS; r++)
            total_ns += run->trained[r][s].end_ns - run->trained[r][s].begin_ns;
        fprintf(out, "%s%.1f", s ? ", " : "", (double)total_ns / RANKS * 1e-3);
    }
}

int figures_write(const struct run *run) {
    FILE *out = fopen(run->figures_path, "w");
    if (!out) {
        perror(run->figures_path);
        return -1;
    }
    write_settings(out, run);
    fprintf(out,
            "],\n \"test_images\": %u, \"correct\": %" PRId64 ", \"flipped_hash\": \"%016" PRIx64 "\",\n \"hashes\": [",
            run->test.count, run->results->epoch_correct[run->epochs - 1], run->results->flipped_hash);
    write_hashes(out, run->results, run->epochs);
    fputs("],\n \"loss\": [", out);
    write_steps(out, run);
    fputs("]}\n", out);
    bool wrong = ferror(out) != 0;
    if (fclose(out) || wrong) {
        fprintf(stderr, "%s: cannot be written\n", run->figures_path);
        return -1;
    }
    return 0;
}
