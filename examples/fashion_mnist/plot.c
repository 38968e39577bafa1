/* plot.c - the loss curves and the times as one SVG picture. See run.h.
 *
 * Three panels: the loss of every run; how far each is from double precision, on a logarithmic scale; and where the
 * time of a step went in each mode.
 */
#include "timing.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define INK    "#24292f"
#define PALE   "#6e7781"
#define GRID   "#e6e8eb"
#define BLUE   "#0969da"
#define ORANGE "#f0a13a"
#define GREEN  "#1a7f37"
#define RED    "#cf222e"

enum { WIDTH = 1280, HEIGHT = 760, AROUND = 4 };

/* A panel: where it is in the picture, and the values at its edges; y may be logarithmic. */
struct panel {
    double left, top, width, height;
    double x_most, y_least, y_most;
};

static double x_of(const struct panel *p, double x) {
    return p->left + p->width * x / p->x_most;
}

static double y_of(const struct panel *p, double y) {
    double least = log10(p->y_least), most = log10(p->y_most);
    double share = (log10(fmin(fmax(y, p->y_least), p->y_most)) - least) / (most - least);
    return p->top + p->height * (1.0 - share);
}

static void text(FILE *out, double x, double y, const char *anchor, int size, const char *colour, const char *words) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"%s\">%s</text>\n", x, y,
            anchor, size, colour, words);
}

static void line(FILE *out, double x1, double y1, double x2, double y2, const char *style) {
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
}

static void title(FILE *out, const struct panel *p, const char *words, const char *below) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"16\" font-weight=\"bold\" fill=\"" INK "\">%s</text>\n",
            p->left, p->top - 30, words);
    text(out, p->left, p->top - 11, "start", 13, PALE, below);
}

static void x_axis(FILE *out, const struct panel *p, int64_t epoch_steps) {
    char label[32];
    double apart = p->x_most > 2000 ? 1000 : p->x_most > 800 ? 200 : p->x_most > 300 ? 100 : 50;
    for (double x = 0; x <= p->x_most; x += apart) {
        snprintf(label, sizeof label, "%.0f", x);
        text(out, x_of(p, x), p->top + p->height + 19, "middle", 12, PALE, label);
    }
    for (double x = (double)epoch_steps; x < p->x_most; x += (double)epoch_steps)
        line(out, x_of(p, x), p->top, x_of(p, x), p->top + p->height, "stroke=\"" GRID "\" stroke-dasharray=\"4 4\"");
    line(out, p->left, p->top + p->height, p->left + p->width, p->top + p->height, "stroke=\"" PALE "\"");
}

static void y_tick(FILE *out, const struct panel *p, double y, const char *label) {
    line(out, p->left, y_of(p, y), p->left + p->width, y_of(p, y), "stroke=\"" GRID "\"");
    text(out, p->left - 9, y_of(p, y) + 4, "end", 12, PALE, label);
}

typedef double (*value_t)(const struct run *, int64_t);

/* The mean of a value over the steps around s. */
static double smooth(const struct run *run, value_t value, int64_t steps, int64_t s, int around) {
    int64_t first = s > around ? s - around : 0, last = s + around < steps ? s + around : steps - 1;
    double sum = 0.0;
    for (int64_t i = first; i <= last; i++)
        sum += value(run, i);
    return sum / (double)(last - first + 1);
}

static void curve(FILE *out, const struct panel *p, const struct run *run, value_t value, int64_t steps, int around,
                  const char *style) {
    fprintf(out, "<polyline fill=\"none\" stroke-linejoin=\"round\" %s points=\"", style);
    for (int64_t s = 0; s < steps; s++)
        fprintf(out, "%.1f,%.1f ", x_of(p, (double)s), y_of(p, smooth(run, value, steps, s, around)));
    fprintf(out, "\"/>\n");
}

/* A legend is a row of samples below the title's level, at the panel's top right corner. */
static void legend(FILE *out, double x, double y, const char *style, const char *words) {
    line(out, x, y - 4, x + 26, y - 4, style);
    text(out, x + 34, y, "start", 13, INK, words);
}

static double single_loss(const struct run *run, int64_t s) {
    return run->single_loss[s];
}
static double reference_loss(const struct run *run, int64_t s) {
    return run->reference_loss[s];
}
static double off_loss(const struct run *run, int64_t s) {
    return uncoupled_loss(run, (int)s);
}
static double ranks_error(const struct run *run, int64_t s) {
    return fabs(trained_loss(run, s) - run->reference_loss[s]);
}
static double single_error(const struct run *run, int64_t s) {
    return fabs(run->single_loss[s] - run->reference_loss[s]);
}
static double off_error(const struct run *run, int64_t s) {
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
    title(out, &p, "Loss", below);
    y_tick(out, &p, 0.3, "0.3");
    y_tick(out, &p, 0.5, "0.5");
    y_tick(out, &p, 1.0, "1");
    y_tick(out, &p, 2.0, "2");
    x_axis(out, &p, run->epoch_steps);
    curve(out, &p, run, single_loss, run->steps, AROUND, SINGLE_LINE);
    curve(out, &p, run, trained_loss, run->steps, AROUND, RANKS_LINE);
    curve(out, &p, run, reference_loss, run->reference_steps, AROUND, REFERENCE_LINE);
    curve(out, &p, run, off_loss, ROUND_STEPS, AROUND, OFF_LINE);
    const double x = p.left + p.width - 250, y = p.top + 24;
    legend(out, x, y, RANKS_LINE, "4 ranks through gradwired");
    legend(out, x, y + 22, SINGLE_LINE, "one process, same batches");
    legend(out, x, y + 44, REFERENCE_LINE, "double precision (first part)");
    legend(out, x, y + 66, OFF_LINE, "4 ranks, exchange off");
}

static void draw_errors(FILE *out, const struct run *run) {
    const struct panel p = {80, 470, 720, 220, (double)run->steps, 1e-10, 1.0};
    title(out, &p, "Distance from double precision", "absolute difference of the loss of each step");
    y_tick(out, &p, 1e-10, "1e-10");
    y_tick(out, &p, 1e-8, "1e-8");
    y_tick(out, &p, 1e-6, "1e-6");
    y_tick(out, &p, 1e-4, "1e-4");
    y_tick(out, &p, 1e-2, "1e-2");
    y_tick(out, &p, 1, "1");
    x_axis(out, &p, run->epoch_steps);
    text(out, p.left + p.width / 2, p.top + p.height + 42, "middle", 13, PALE, "step");
    curve(out, &p, run, single_error, run->reference_steps, 0,
          "stroke=\"" ORANGE "\" stroke-width=\"2\" stroke-opacity=\"0.7\"");
    curve(out, &p, run, ranks_error, run->reference_steps, 0, RANKS_LINE);
    curve(out, &p, run, off_error, ROUND_STEPS, 0, OFF_LINE);
    line(out, p.left, y_of(&p, REFERENCE_BOUND), p.left + p.width, y_of(&p, REFERENCE_BOUND),
         "stroke=\"" GREEN "\" stroke-width=\"1.5\" stroke-dasharray=\"8 4\"");
    text(out, p.left + p.width - 4, y_of(&p, REFERENCE_BOUND) - 6, "end", 13, GREEN, "bound");
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
    title(out, &p, "Where a step's time went", "ms, mean of 4 ranks");
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
                text(out, x + width / 2, y + tall / 2 + 4, "middle", 12, i == 2 ? "#ffffff" : INK, label);
        }
        text(out, x + width / 2, top + height + 19, "middle", 13, INK, mode_name[m]);
        snprintf(label, sizeof label, "median %.2f", shares[m].median_exposed);
        text(out, x + width / 2, top + height + 37, "middle", 12, RED, label);
    }
    for (int i = 0; i < 5; i++) {
        double y = 480 + i * 26;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"16\" fill=\"%s\"/>\n", left, y, part_colour[i]);
        text(out, left + 26, y + 13, "start", 13, INK, part_name[i]);
    }
    text(out, left, 628, "start", 13, RED, "Exposed: a rank waits though all have submitted.");
}

int plot_write(const struct run *run, const char *path) {
    FILE *out = fopen(path, "w");
    if (!out) {
        fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
        return -1;
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"white\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(out, "<text x=\"80\" y=\"48\" font-size=\"22\" font-weight=\"bold\" fill=\"" INK
                 "\">Fashion-MNIST, averaged through gradwired</text>\n");
    draw_losses(out, run);
    draw_errors(out, run);
    draw_times(out, run);
    fprintf(out, "</svg>\n");
    if (fclose(out)) {
        fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
        return -1;
    }
    return 0;
}
