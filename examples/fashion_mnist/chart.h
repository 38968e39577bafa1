/* chart.h - axes, curves and words of an SVG picture: what the demonstrations draw with. */
#ifndef FASHION_CHART_H
#define FASHION_CHART_H

#include <stdint.h>
#include <stdio.h>

#define INK    "#24292f"
#define PALE   "#6e7781"
#define GRID   "#e6e8eb"
#define BLUE   "#0969da"
#define ORANGE "#f0a13a"
#define GREEN  "#1a7f37"
#define RED    "#cf222e"

/* A panel: where it is in the picture, and the values at its edges; y is logarithmic. */
struct panel {
    double left, top, width, height;
    double x_most, y_least, y_most;
};

/* The value of a curve at a step; `of` is what chart_curve was given. */
typedef double (*value_t)(const void *of, int64_t step);

/* Returns NULL after printing what is wrong. Ownership: end it with chart_close. */
FILE *chart_open(const char *path, int width, int height, const char *title);
/* Returns 0, or -1 after printing what went wrong. */
int chart_close(FILE *out, const char *path);

double chart_y(const struct panel *p, double y);
void chart_text(FILE *out, double x, double y, const char *anchor, int size, const char *colour, const char *words);
void chart_line(FILE *out, double x1, double y1, double x2, double y2, const char *style);
void chart_title(FILE *out, const struct panel *p, const char *words, const char *below);
void chart_x_axis(FILE *out, const struct panel *p, int64_t epoch_steps);
void chart_y_tick(FILE *out, const struct panel *p, double y, const char *label);

/* Each point is the mean of the values of the steps that are at most `around` away. */
void chart_curve(FILE *out, const struct panel *p, value_t value, const void *of, int64_t steps, int around,
                 const char *style);
/* A sample of a line, and what it means. */
void chart_legend(FILE *out, double x, double y, const char *style, const char *words);

#endif
