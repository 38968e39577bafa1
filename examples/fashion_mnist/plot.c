/* plot.c - the loss curves and the times as one SVG picture. See run.h.
 *
 * Three panels: the loss of every run; how far each is from double precision, on a logarithmic scale; and where the
 * time of a step went in each mode.
 */
#include "chart.h"
#include "timing.h"

#include <math.h>
#include <stdio.h>

enum { WIDTH = 1280, HEIGHT = 760, AROUND = 4 };

static double ranks_loss(const void *of, int64_t s) {
    return trained_loss(of, s);
}
static double single_loss(const void *of, int64_t s) {
    const struct run *run = of;
    return run->single_loss[s];
}
static double reference_loss(const void *of, int64_t s) {
    const struct run *run = of;
    return run->reference_loss[s];
}
static double off_loss(const void *of, int64_t s) {
    const struct run *run = of;
    return uncoupled_loss(run, (int)s);
}
static double ranks_error(const void *of, int64_t s) {
    const struct run *run = of;
    return fabs(trained_loss(run, s) - run->reference_loss[s]);
}
static double single_error(const void *of, int64_t s) {
    const struct run *run = of;
    return fabs(run->single_loss[s] - run->reference_loss[s]);
}
static double off_error(const void *of, int64_t s) {
    const struct run *run = of;
    return fabs(uncoupled_loss(run, (int)s) - run->reference_loss[s]);
}

#define SINGLE_LINE    "stroke=\"" ORANGE "\" stroke-width=\"6\" stroke-opacity=\"0.55\""
#define RANKS_LINE     "stroke=\"" BLUE "\" stroke-width=\"1.6\""
#define REFERENCE_LINE "stroke=\"" INK "\" stroke-width=\"2.6\" stroke-linecap=\"round\" stroke-dasharray=\"0.1 8\""
#define OFF_LINE       "stroke=\"" RED "\" stroke-width=\"1.8\""

static void draw_losses(FILE *out, const struct run *run) {
    const struct panel p = {80, 130, 720, 250, (double)run->steps, 0.2, 3.0};
    char below[160];
    snprintf(
        below, sizeof below,
        "of the training images, mean of 9 steps; %d epochs; test accuracy %.2f %% (4 ranks), %.2f %% (one process)",
        run->epochs, 100.0 * (double)run->results->epoch_correct[run->epochs - 1] / run->test.count,
        100.0 * (double)run->results->single_correct / run->test.count);
    chart_title(out, &p, "Loss", below);
    chart_y_tick(out, &p, 0.3, "0.3");
    chart_y_tick(out, &p, 0.5, "0.5");
    chart_y_tick(out, &p, 1.0, "1");
    chart_y_tick(out, &p, 2.0, "2");
    chart_x_axis(out, &p, run->epoch_steps);
    chart_curve(out, &p, single_loss, run, run->steps, AROUND, SINGLE_LINE);
    chart_curve(out, &p, ranks_loss, run, run->steps, AROUND, RANKS_LINE);
    chart_curve(out, &p, reference_loss, run, run->reference_steps, AROUND, REFERENCE_LINE);
    chart_curve(out, &p, off_loss, run, ROUND_STEPS, AROUND, OFF_LINE);
    const double x = p.left + p.width - 250, y = p.top + 24;
    chart_legend(out, x, y, RANKS_LINE, "4 ranks through gradwired");
    chart_legend(out, x, y + 22, SINGLE_LINE, "one process, same batches");
    chart_legend(out, x, y + 44, REFERENCE_LINE, "double precision (first part)");
    chart_legend(out, x, y + 66, OFF_LINE, "4 ranks, exchange off");
}

static void draw_errors(FILE *out, const struct run *run) {
    const struct panel p = {80, 470, 720, 220, (double)run->steps, 1e-10, 1.0};
    chart_title(out, &p, "Distance from double precision", "absolute difference of the loss of each step");
    chart_y_tick(out, &p, 1e-10, "1e-10");
    chart_y_tick(out, &p, 1e-8, "1e-8");
    chart_y_tick(out, &p, 1e-6, "1e-6");
    chart_y_tick(out, &p, 1e-4, "1e-4");
    chart_y_tick(out, &p, 1e-2, "1e-2");
    chart_y_tick(out, &p, 1, "1");
    chart_x_axis(out, &p, run->epoch_steps);
    chart_text(out, p.left + p.width / 2, p.top + p.height + 42, "middle", 13, PALE, "step");
    chart_curve(out, &p, single_error, run, run->reference_steps, 0,
                "stroke=\"" ORANGE "\" stroke-width=\"2\" stroke-opacity=\"0.7\"");
    chart_curve(out, &p, ranks_error, run, run->reference_steps, 0, RANKS_LINE);
    chart_curve(out, &p, off_error, run, ROUND_STEPS, 0, OFF_LINE);
    chart_line(out, p.left, chart_y(&p, REFERENCE_BOUND), p.left + p.width, chart_y(&p, REFERENCE_BOUND),
               "stroke=\"" GREEN "\" stroke-width=\"1.5\" stroke-dasharray=\"8 4\"");
    chart_text(out, p.left + p.width - 4, chart_y(&p, REFERENCE_BOUND) - 6, "end", 13, GREEN, "bound");
}

static void draw_times(FILE *out, const struct run *run) {
    static const char *const mode_name[MODES] = {"overlapped", "apart", "exchange off"};
    static const char *const part_name[] = {"forward", "backward", "exchange, exposed: it alone makes a rank wait",
                                            "waiting for a rank or a core", "update"};
    static const char *const part_colour[] = {"#a5c8f5", "#5b9ae6", RED, "#d0d7de", "#8ac79b"};
    const double left = 890, top = 130, width = 90, height = 250, gap = 40;
    struct shares shares[MODES];
    char label[64];
    double most = 0.0;
    for (int m = 0; m < MODES; m++) {
        if (timing_measured(run, (enum mode)m, &shares[m]))
            return;
        most = fmax(most, shares[m].step);
    }
    const struct panel p = {left, top, 0, height, 1, 1, 1};
    chart_title(out, &p, "Where a step's time went", "ms, mean of 4 ranks");
    for (int m = 0; m < MODES; m++) {
        const double part[] = {shares[m].forward, shares[m].backward, shares[m].exposed, shares[m].other,
                               shares[m].update};
        double x = left + m * (width + gap), y = top + height;
        for (int i = 0; i < 5; i++) {
            double tall = height * part[i] / most;
            y -= tall;
            fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, width,
                    tall, part_colour[i]);
            snprintf(label, sizeof label, "%.2f", part[i]);
            if (tall > 14)
                chart_text(out, x + width / 2, y + tall / 2 + 4, "middle", 12, i == 2 ? "#ffffff" : INK, label);
        }
        chart_text(out, x + width / 2, top + height + 19, "middle", 13, INK, mode_name[m]);
        snprintf(label, sizeof label, "median %.2f", shares[m].median_exposed);
        chart_text(out, x + width / 2, top + height + 37, "middle", 12, RED, label);
    }
    for (int i = 0; i < 5; i++) {
        double y = 480 + i * 26;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"16\" fill=\"%s\"/>\n", left, y, part_colour[i]);
        chart_text(out, left + 26, y + 13, "start", 13, INK, part_name[i]);
    }
    chart_text(out, left, 628, "start", 13, RED, "Exposed: a rank waits though all have submitted.");
}

int plot_write(const struct run *run, const char *path) {
    FILE *out = chart_open(path, WIDTH, HEIGHT, "Fashion-MNIST, averaged through gradwired");
    if (!out)
        return -1;
    draw_losses(out, run);
    draw_errors(out, run);
    draw_times(out, run);
    return chart_close(out, path);
}
