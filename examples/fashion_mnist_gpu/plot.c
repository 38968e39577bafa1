/* plot.c - the loss curves and the times as one SVG picture. See run.h. */
#include "../fashion_mnist/chart.h"
#include "run.h"

#include <math.h>

enum { WIDTH = 1280, HEIGHT = 760, AROUND = 4 };

static double losses_of_ranks(const void *of, int64_t s) {
    return ranks_loss(of, s);
}
static double losses_of_one(const void *of, int64_t s) {
    const struct run *run = of;
    return run->alone_loss[SINGLE_PRECISION][s];
}
static double losses_exact(const void *of, int64_t s) {
    const struct run *run = of;
    return run->alone_loss[DOUBLE_PRECISION][s];
}
static double losses_of_control(const void *of, int64_t s) {
    return control_loss(of, s);
}
static double error_of_ranks(const void *of, int64_t s) {
    return fabs(ranks_loss(of, s) - losses_exact(of, s));
}
static double error_of_one(const void *of, int64_t s) {
    return fabs(losses_of_one(of, s) - losses_exact(of, s));
}
static double error_of_control(const void *of, int64_t s) {
    return fabs(control_loss(of, s) - losses_exact(of, s));
}

#define ONE_LINE     "stroke=\"" ORANGE "\" stroke-width=\"6\" stroke-opacity=\"0.55\""
#define RANKS_LINE   "stroke=\"" BLUE "\" stroke-width=\"1.6\""
#define EXACT_LINE   "stroke=\"" INK "\" stroke-width=\"2.6\" stroke-linecap=\"round\" stroke-dasharray=\"0.1 8\""
#define CONTROL_LINE "stroke=\"" RED "\" stroke-width=\"1.8\""

static int64_t control_steps(const struct run *run) {
    return run->steps < CONTROL_STEPS ? run->steps : CONTROL_STEPS;
}

static void draw_losses(FILE *out, const struct run *run) {
    const struct panel p = {80, 130, 720, 250, (double)run->steps, 0.2, 3.0};
    const double x = p.left + p.width - 250, y = p.top + 24;
    char words[160];
    snprintf(words, sizeof words,
             "of the training images, mean of 9 steps; %d epochs; test accuracy %.2f %% (%d ranks), %.2f %% (one "
             "process)",
             run->epochs, 100.0 * (double)run->results->epoch_correct[run->epochs - 1] / run->test.count, run->ranks,
             100.0 * (double)run->results->single_correct / run->test.count);
    chart_title(out, &p, "Loss", words);
    chart_y_tick(out, &p, 0.3, "0.3");
    chart_y_tick(out, &p, 0.5, "0.5");
    chart_y_tick(out, &p, 1.0, "1");
    chart_y_tick(out, &p, 2.0, "2");
    chart_x_axis(out, &p, run->epoch_steps);
    chart_curve(out, &p, losses_of_one, run, run->steps, AROUND, ONE_LINE);
    chart_curve(out, &p, losses_of_ranks, run, run->steps, AROUND, RANKS_LINE);
    chart_curve(out, &p, losses_exact, run, run->steps, AROUND, EXACT_LINE);
    chart_curve(out, &p, losses_of_control, run, control_steps(run), AROUND, CONTROL_LINE);
    snprintf(words, sizeof words, "%d ranks through gradwired", run->ranks);
    chart_legend(out, x, y, RANKS_LINE, words);
    chart_legend(out, x, y + 22, ONE_LINE, "one process, same batches");
    chart_legend(out, x, y + 44, EXACT_LINE, "the same in double precision");
    snprintf(words, sizeof words, "%d ranks, exchange off", run->ranks);
    chart_legend(out, x, y + 66, CONTROL_LINE, words);
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
    chart_curve(out, &p, error_of_one, run, run->steps, 0,
                "stroke=\"" ORANGE "\" stroke-width=\"2\" stroke-opacity=\"0.7\"");
    chart_curve(out, &p, error_of_ranks, run, run->steps, 0, RANKS_LINE);
    chart_curve(out, &p, error_of_control, run, control_steps(run), 0, CONTROL_LINE);
    chart_line(out, p.left, chart_y(&p, CURVE_BOUND), p.left + p.width, chart_y(&p, CURVE_BOUND),
               "stroke=\"" GREEN "\" stroke-width=\"1.5\" stroke-dasharray=\"8 4\"");
    chart_text(out, p.left + p.width - 4, chart_y(&p, CURVE_BOUND) - 6, "end", 13, GREEN, "bound");
}

static void draw_times(FILE *out, const struct run *run) {
    static const char *const mode_name[MODES] = {"overlapped", "apart", "exchange off"};
    static const char *const part_name[PARTS] = {"forward", "backward", "update, and what is left to wait for"};
    static const char *const part_colour[PARTS] = {"#a5c8f5", "#5b9ae6", "#8ac79b"};
    const double left = 890, top = 130, width = 90, height = 250, gap = 40;
    struct times times[MODES];
    char words[160];
    double most = 0.0;
    for (int m = 0; m < MODES; m++) {
        double sum = 0.0;
        times_of(run, (enum mode)m, &times[m]);
        for (int i = 0; i < PARTS; i++)
            sum += times[m].part[i];
        most = fmax(most, sum);
    }
    const struct panel p = {left, top, 0, height, 1, 1, 1};
    snprintf(words, sizeof words, "ms on the stream, medians; %d images a rank", run->measured_batch);
    chart_title(out, &p, "Where a step's time went", words);
    for (int m = 0; m < MODES; m++) {
        double x = left + m * (width + gap), y = top + height;
        for (int i = 0; i < PARTS; i++) {
            double tall = height * times[m].part[i] / most;
            y -= tall;
            fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, width,
                    tall, part_colour[i]);
            snprintf(words, sizeof words, "%.3f", times[m].part[i]);
            if (tall > 14)
                chart_text(out, x + width / 2, y + tall / 2 + 4, "middle", 12, INK, words);
        }
        chart_text(out, x + width / 2, top + height + 19, "middle", 13, INK, mode_name[m]);
        snprintf(words, sizeof words, "step %.3f", times[m].step);
        chart_text(out, x + width / 2, top + height + 37, "middle", 12, PALE, words);
    }
    for (int i = 0; i < PARTS; i++) {
        double y = 480 + i * 26;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"16\" fill=\"%s\"/>\n", left, y, part_colour[i]);
        chart_text(out, left + 26, y + 13, "start", 13, INK, part_name[i]);
    }
}

int plot_write(const struct run *run, const char *path) {
    FILE *out = chart_open(path, WIDTH, HEIGHT, "Fashion-MNIST on GPUs, averaged through gradwired");
    if (!out)
        return -1;
    draw_losses(out, run);
    draw_errors(out, run);
    draw_times(out, run);
    return chart_close(out, path);
}
