/* chart.c - see chart.h. */
#include "chart.h"

#include <errno.h>
#include <math.h>
#include <string.h>

FILE *chart_open(const char *path, int width, int height, const char *title) {
    FILE *out = fopen(path, "w");
    if (!out) {
        fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
        return NULL;
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"white\"/>\n",
            width, height, width, height);
    fprintf(out, "<text x=\"80\" y=\"48\" font-size=\"22\" font-weight=\"bold\" fill=\"" INK "\">%s</text>\n", title);
    return out;
}

int chart_close(FILE *out, const char *path) {
    fprintf(out, "</svg>\n");
    if (fclose(out)) {
        fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
        return -1;
    }
    return 0;
}

static double chart_x(const struct panel *p, double x) {
    return p->left + p->width * x / p->x_most;
}

double chart_y(const struct panel *p, double y) {
    double least = log10(p->y_least), most = log10(p->y_most);
    double share = (log10(fmin(fmax(y, p->y_least), p->y_most)) - least) / (most - least);
    return p->top + p->height * (1.0 - share);
}

void chart_text(FILE *out, double x, double y, const char *anchor, int size, const char *colour, const char *words) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"%s\">%s</text>\n", x, y,
            anchor, size, colour, words);
}

void chart_line(FILE *out, double x1, double y1, double x2, double y2, const char *style) {
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
}

void chart_title(FILE *out, const struct panel *p, const char *words, const char *below) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"16\" font-weight=\"bold\" fill=\"" INK "\">%s</text>\n",
            p->left, p->top - 30, words);
    chart_text(out, p->left, p->top - 11, "start", 13, PALE, below);
}

void chart_x_axis(FILE *out, const struct panel *p, int64_t epoch_steps) {
    char label[32];
    double apart = p->x_most > 2000 ? 1000 : p->x_most > 800 ? 200 : p->x_most > 300 ? 100 : 50;
    for (double x = 0; x <= p->x_most; x += apart) {
        snprintf(label, sizeof label, "%.0f", x);
        chart_text(out, chart_x(p, x), p->top + p->height + 19, "middle", 12, PALE, label);
    }
    for (double x = (double)epoch_steps; x < p->x_most; x += (double)epoch_steps)
        chart_line(out, chart_x(p, x), p->top, chart_x(p, x), p->top + p->height,
                   "stroke=\"" GRID "\" stroke-dasharray=\"4 4\"");
    chart_line(out, p->left, p->top + p->height, p->left + p->width, p->top + p->height, "stroke=\"" PALE "\"");
}

void chart_y_tick(FILE *out, const struct panel *p, double y, const char *label) {
    chart_line(out, p->left, chart_y(p, y), p->left + p->width, chart_y(p, y), "stroke=\"" GRID "\"");
    chart_text(out, p->left - 9, chart_y(p, y) + 4, "end", 12, PALE, label);
}

static double smooth(value_t value, const void *of, int64_t steps, int64_t s, int around) {
    int64_t first = s > around ? s - around : 0, last = s + around < steps ? s + around : steps - 1;
    double sum = 0.0;
    for (int64_t i = first; i <= last; i++)
        sum += value(of, i);
    return sum / (double)(last - first + 1);
}

void chart_curve(FILE *out, const struct panel *p, value_t value, const void *of, int64_t steps, int around,
                 const char *style) {
    fprintf(out, "<polyline fill=\"none\" stroke-linejoin=\"round\" %s points=\"", style);
    for (int64_t s = 0; s < steps; s++)
        fprintf(out, "%.1f,%.1f ", chart_x(p, (double)s), chart_y(p, smooth(value, of, steps, s, around)));
    fprintf(out, "\"/>\n");
}

void chart_legend(FILE *out, double x, double y, const char *style, const char *words) {
    chart_line(out, x, y - 4, x + 26, y - 4, style);
    chart_text(out, x + 34, y, "start", 13, INK, words);
}
